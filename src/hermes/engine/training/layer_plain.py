"""The operations between the matrix products of a layer, forward and backward, in plain torch.

The same functions as in `kernels.layer`, for devices without Triton, and as the reference in their tests.
They do not use autograd: `manual_backward` calls the backward functions itself.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.attention.varlen import SharedKeyCopies
from hermes.engine.model.llama import rms_norm, rotate


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + delta, and its norm."""
    total = x if delta is None else x + delta
    return total, rms_norm(total, weight, eps)


def norm_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> Tensor:
    """The gradient of x from that of its norm, plus the gradient of the residual connection."""
    x_fp32, scaled_grad = x.float(), grad.float() * weight.float()
    scale = torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + eps)
    result = scaled_grad * scale - x_fp32 * (scaled_grad * x_fp32).mean(-1, keepdim=True) * scale**3
    return (result if residual is None else result + residual.float()).to(x.dtype)


def apply_rope(
    qkv: Tensor,
    rope: tuple[Tensor, Tensor],
    shape: tuple[int, int, int],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """Rotary embedding, after the heads' norms, of the queries and keys of [T, (heads + 2 kv) * D].

    `shape` is heads, kv, D; `rope` is cosines and sines [T, D / 2]. Works in place if there are no norms.
    """
    heads, kv, dim = shape
    q, k, v = torch.split(qkv.view(len(qkv), -1, dim), [heads, kv, kv], dim=1)
    if norms is not None:
        q, k = rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)
    cos, sin = (part[:, None] for part in rope)
    rotated = torch.cat((rotate(q, (cos, sin)), rotate(k, (cos, sin)), v), dim=1).view_as(qkv)
    return qkv.copy_(rotated) if norms is None else rotated


def apply_rope_backward(
    grads: tuple[Tensor, Tensor, Tensor],
    rope: tuple[Tensor, Tensor],
    raw: Tensor,
    shape: tuple[int, int, int],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    copies: SharedKeyCopies | None,
) -> Tensor:
    """The gradient of `raw`, the input of `apply_rope`, from those of queries, keys and values.

    With `copies`, keys and values were repeated after the rotation, and their gradients are summed here.
    `raw` is read only if there are norms.
    """
    heads, kv, dim = shape
    dq, dk, dv = grads
    if copies is not None:
        dk, dv = (_sum_copies(grad, copies, len(raw)) for grad in (dk, dv))
    cos, sin = (part[:, None] for part in rope)
    dq, dk = (rotate(grad, (cos, -sin)) for grad in (dq, dk))
    if norms is not None:
        q, k, _ = torch.split(raw.view(len(raw), -1, dim), [heads, kv, kv], dim=1)
        dq, dk = norm_backward(dq, q, norms[0], eps, None), norm_backward(dk, k, norms[1], eps, None)
    return torch.cat((dq, dk, dv), dim=1).view_as(raw)


def _sum_copies(grad: Tensor, copies: SharedKeyCopies, rows: int) -> Tensor:
    total = torch.zeros(rows, *grad.shape[1:], dtype=torch.float32, device=grad.device)
    return total.index_add_(0, copies.source, grad.float()).to(grad.dtype)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(left half) * right half."""
    left, right = gate_up.chunk(2, dim=-1)
    return functional.silu(left) * right


def silu_and_mul_backward(gate_up: Tensor, grad: Tensor) -> Tensor:
    """The gradient of `gate_up`, which it overwrites."""
    left, right = gate_up.chunk(2, dim=-1)
    gate, upstream = left.float(), grad.float()
    sigmoid = gate.sigmoid()
    up_grad = upstream * gate * sigmoid
    left.copy_(upstream * right.float() * sigmoid * (1.0 + gate * (1.0 - sigmoid)))
    right.copy_(up_grad)
    return gate_up
