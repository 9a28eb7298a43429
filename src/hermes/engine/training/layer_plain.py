"""What lies between the matrix products of a layer, forwards and backwards, in plain torch.

The same functions as in `layer_kernels`, for the devices that have no Triton, and as what those are tested
against. Nothing here records a graph: the backward pass is written out in `layer_stack`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.attention.packed_varlen import SharedKeyCopies
from hermes.engine.model.llama import rms_norm, rotate


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, room: int) -> tuple[Tensor, Tensor]:
    """x + delta, and its norm in the first columns of a matrix that has `room` for more behind them."""
    total = x if delta is None else x + delta
    out = x.new_empty(x.shape[0], x.shape[1] + room)
    out[:, : x.shape[1]] = rms_norm(total, weight, eps)
    return total, out


def norm_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> Tensor:
    """The gradient of x from that of its norm, added to what comes past the norm."""
    wide, pull = x.float(), grad.float() * weight.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    result = pull * scale - wide * (pull * wide).mean(-1, keepdim=True) * scale**3
    return (result if residual is None else result + residual.float()).to(x.dtype)


def turn(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    shape: tuple[int, int, int],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """Rotary positions, after the heads' norms, on the queries and keys of [T, (heads + 2 kv) * D].

    `shape` is heads, kv, D; `angles` are cosines and sines [T, D / 2]. Without norms it works in place.
    """
    heads, kv, dim = shape
    q, k, v = torch.split(qkv.view(len(qkv), -1, dim), [heads, kv, kv], dim=1)
    if norms is not None:
        q, k = rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)
    cos, sin = (one[:, None] for one in angles)
    turned = torch.cat((rotate(q, (cos, sin)), rotate(k, (cos, sin)), v), dim=1).view_as(qkv)
    return qkv.copy_(turned) if norms is None else turned


def turn_backward(
    grads: tuple[Tensor, Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    raw: Tensor,
    shape: tuple[int, int, int],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    copies: SharedKeyCopies | None,
) -> Tensor:
    """The gradient of what `turn` was given, `raw`, from those of queries, keys and values.

    With `copies`, keys and values were repeated after turning, and their gradients are summed here. `raw`
    is read only where there are norms.
    """
    heads, kv, dim = shape
    dq, dk, dv = grads
    if copies is not None:
        dk, dv = (_summed(one, copies, len(raw)) for one in (dk, dv))
    cos, sin = (one[:, None] for one in angles)
    dq, dk = (rotate(one, (cos, -sin)) for one in (dq, dk))
    if norms is not None:
        q, k, _ = torch.split(raw.view(len(raw), -1, dim), [heads, kv, kv], dim=1)
        dq, dk = norm_backward(dq, q, norms[0], eps, None), norm_backward(dk, k, norms[1], eps, None)
    return torch.cat((dq, dk, dv), dim=1).view_as(raw)


def _summed(grad: Tensor, copies: SharedKeyCopies, rows: int) -> Tensor:
    total = torch.zeros(rows, *grad.shape[1:], dtype=torch.float32, device=grad.device)
    return total.index_add_(0, copies.source, grad.float()).to(grad.dtype)


def gate(gate_up: Tensor, room: int) -> Tensor:
    """silu(left half) * right half, in the first columns of a matrix that has `room` behind them."""
    left, right = gate_up.chunk(2, dim=-1)
    out = gate_up.new_empty(len(gate_up), left.shape[1] + room)
    torch.mul(functional.silu(left), right, out=out[:, : left.shape[1]])
    return out


def gate_backward(gate_up: Tensor, grad: Tensor) -> Tensor:
    """The gradient of `gate_up`, in its place."""
    left, right = gate_up.chunk(2, dim=-1)
    wide, pull = left.float(), grad.float()
    opened = wide.sigmoid()
    up = pull * wide * opened
    left.copy_(pull * right.float() * opened * (1.0 + wide * (1.0 - opened)))
    right.copy_(up)
    return gate_up
