"""Triton kernels of the training pass: what lies between two matrix products, forwards and backwards.

The same functions as in `layer_plain`, one launch each. Arithmetic is fp32 inside, results in the tensors'
dtype. Every program works on rows of its own and sums in a fixed order, so that results repeat bit for bit.
Imported only where there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hermes.engine.attention.packed_varlen import SharedKeyCopies
from hermes.engine.kernels.decode import gate

__all__ = ["add_norm", "gate", "gate_backward", "norm_backward", "turn", "turn_backward"]

_GATE_BLOCK = 512


@triton.jit
def _add_norm(
    x, delta, weight, total, out, out_stride, width, eps, BLOCK: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0)
    if ADD:
        more = tl.load(delta + row * width + at, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(total + row * width + at, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    normed = (wide * scale).to(value.dtype).to(tl.float32)
    normed = normed * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, normed.to(value.dtype), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, room: int) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    total = x if delta is None else torch.empty_like(x)
    out = x.new_empty(rows, width + room)
    block = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        x, x if delta is None else delta, weight, total, out, width + room, width, eps,
        block, delta is not None, num_warps=_warps(block),
    )  # fmt: skip
    return total, out


@triton.jit
def _norm_backward(
    grad, grad_stride, x, weight, residual, out, width, eps, BLOCK: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    pull = tl.load(grad + row * grad_stride + at, mask=inside, other=0.0).to(tl.float32)
    pull = pull * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    along = tl.sum(pull * value, 0) / width * scale * scale * scale
    result = pull * scale - value * along
    if ADD:
        result += tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, result.to(out.dtype.element_ty), mask=inside)


def norm_backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> Tensor:
    rows, width = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _norm_backward[(rows,)](
        grad, grad.stride(0), x, weight, x if residual is None else residual, out, width, eps,
        block, residual is not None, num_warps=_warps(block),
    )  # fmt: skip
    return out


@triton.jit
def _turn(
    qkv, out, cos, sin, q_norm, k_norm, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, KV_ROWS: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = row * (HEADS + 2 * KV) * 2 * HALF
    at = tl.arange(0, BLOCK)[None, :]
    head = tl.arange(0, ROWS)[:, None]
    inside = (head < HEADS + KV) & (at < HALF)
    where = start + head * 2 * HALF + at
    left = tl.load(qkv + where, mask=inside, other=0.0)
    right = tl.load(qkv + where + HALF, mask=inside, other=0.0)
    kind = left.dtype
    low, high = left.to(tl.float32), right.to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)[:, None]
        low_weight = _by_head(q_norm, k_norm, head, at, HEADS, HALF)
        high_weight = _by_head(q_norm + HALF, k_norm + HALF, head, at, HEADS, HALF)
        low = (low * scale).to(kind).to(tl.float32) * low_weight
        high = (high * scale).to(kind).to(tl.float32) * high_weight
        value_head = tl.arange(0, KV_ROWS)[:, None]
        present = (value_head < KV) & (at < HALF)
        there = start + (HEADS + KV + value_head) * 2 * HALF + at
        tl.store(out + there, tl.load(qkv + there, mask=present, other=0.0), mask=present)
        there += HALF
        tl.store(out + there, tl.load(qkv + there, mask=present, other=0.0), mask=present)
    c = tl.load(cos + row * HALF + at, mask=at < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + row * HALF + at, mask=at < HALF, other=0.0).to(tl.float32)
    tl.store(out + where, (low * c - high * s).to(kind), mask=inside)
    tl.store(out + where + HALF, (high * c + low * s).to(kind), mask=inside)


@triton.jit
def _by_head(q_norm, k_norm, head, at, HEADS: tl.constexpr, HALF: tl.constexpr):
    """The head norms' weights, each head its own kind's."""
    of_q = tl.load(q_norm + at, mask=at < HALF, other=0.0).to(tl.float32)
    of_k = tl.load(k_norm + at, mask=at < HALF, other=0.0).to(tl.float32)
    return tl.where(head < HEADS, of_q, of_k)


def turn(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    shape: tuple[int, int, int],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    heads, kv, dim = shape
    out = qkv if norms is None else torch.empty_like(qkv)
    q_norm, k_norm = norms or angles
    rows, block = triton.next_power_of_2(heads + kv), triton.next_power_of_2(dim // 2)
    _turn[(qkv.shape[0],)](
        qkv, out, *angles, q_norm, k_norm, eps, heads, kv, dim // 2, rows, triton.next_power_of_2(kv), block,
        norms is not None, num_warps=_warps(rows * block),
    )  # fmt: skip
    return out


@triton.jit
def _unturn(
    first, second, cos, sin, raw, where, inside, low_weight, high_weight, eps,
    HALF: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Gradients of the halves before turning, and before the head's norm."""
    low = first * cos + second * sin
    high = second * cos - first * sin
    if NORM:
        low_value = tl.load(raw + where, mask=inside, other=0.0).to(tl.float32)
        high_value = tl.load(raw + where + HALF, mask=inside, other=0.0).to(tl.float32)
        low, high = low * low_weight, high * high_weight
        square = tl.sum(low_value * low_value, 1) + tl.sum(high_value * high_value, 1)
        scale = tl.rsqrt(square / (2 * HALF) + eps)[:, None]
        along = (tl.sum(low * low_value, 1) + tl.sum(high * high_value, 1))[:, None] / (2 * HALF)
        along = along * scale * scale * scale
        low, high = low * scale - low_value * along, high * scale - high_value * along
    return low, high


@triton.jit
def _turn_backward(
    dq, dk, dv, out, cos, sin, raw, q_norm, k_norm, node, last, begin, position, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, KV_ROWS: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = row * (HEADS + 2 * KV) * 2 * HALF
    at = tl.arange(0, BLOCK)[None, :]
    c = tl.load(cos + row * HALF + at, mask=at < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + row * HALF + at, mask=at < HALF, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty

    head = tl.arange(0, ROWS)[:, None]
    inside = (head < HEADS) & (at < HALF)
    spot = dq + row * HEADS * 2 * HALF + head * 2 * HALF + at
    first = tl.load(spot, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(spot + HALF, mask=inside, other=0.0).to(tl.float32)
    low_weight = _by_head(q_norm, q_norm, head, at, HEADS, HALF) if NORM else c
    high_weight = _by_head(q_norm + HALF, q_norm + HALF, head, at, HEADS, HALF) if NORM else c
    where = start + head * 2 * HALF + at
    low, high = _unturn(
        first, second, c, s, raw, where, inside, low_weight, high_weight, eps, HALF, NORM
    )  # fmt: skip
    tl.store(out + where, low.to(kind), mask=inside)
    tl.store(out + where + HALF, high.to(kind), mask=inside)

    head = tl.arange(0, KV_ROWS)[:, None]
    inside = (head < KV) & (at < HALF)
    inner = head * 2 * HALF + at
    if SHARED:
        first = tl.zeros([KV_ROWS, BLOCK], tl.float32)
        second = tl.zeros([KV_ROWS, BLOCK], tl.float32)
        left = tl.zeros([KV_ROWS, BLOCK], tl.float32)
        right = tl.zeros([KV_ROWS, BLOCK], tl.float32)
        own = tl.load(node + row)
        stop = tl.load(last + own)
        offset = tl.load(position + row)
        for reader in range(own, stop):
            copy = (tl.load(begin + reader) + offset).to(tl.int64) * (KV * 2 * HALF)
            first += tl.load(dk + copy + inner, mask=inside, other=0.0).to(tl.float32)
            second += tl.load(dk + copy + inner + HALF, mask=inside, other=0.0).to(tl.float32)
            left += tl.load(dv + copy + inner, mask=inside, other=0.0).to(tl.float32)
            right += tl.load(dv + copy + inner + HALF, mask=inside, other=0.0).to(tl.float32)
    else:
        copy = row * (KV * 2 * HALF)
        first = tl.load(dk + copy + inner, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(dk + copy + inner + HALF, mask=inside, other=0.0).to(tl.float32)
        left = tl.load(dv + copy + inner, mask=inside, other=0.0).to(tl.float32)
        right = tl.load(dv + copy + inner + HALF, mask=inside, other=0.0).to(tl.float32)
    low_weight = _by_head(k_norm, k_norm, head, at, KV, HALF) if NORM else c
    high_weight = _by_head(k_norm + HALF, k_norm + HALF, head, at, KV, HALF) if NORM else c
    where = start + HEADS * 2 * HALF + inner
    low, high = _unturn(
        first, second, c, s, raw, where, inside, low_weight, high_weight, eps, HALF, NORM
    )  # fmt: skip
    tl.store(out + where, low.to(kind), mask=inside)
    tl.store(out + where + HALF, high.to(kind), mask=inside)
    where += KV * 2 * HALF
    tl.store(out + where, left.to(kind), mask=inside)
    tl.store(out + where + HALF, right.to(kind), mask=inside)


def turn_backward(
    grads: tuple[Tensor, Tensor, Tensor],
    angles: tuple[Tensor, Tensor],
    raw: Tensor,
    shape: tuple[int, int, int],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    copies: SharedKeyCopies | None,
) -> Tensor:
    heads, kv, dim = shape
    out, pulls = torch.empty_like(raw), [one.contiguous() for one in grads]
    q_norm, k_norm = norms or angles
    rows, block = triton.next_power_of_2(heads), triton.next_power_of_2(dim // 2)
    tree = (copies.node, copies.last, copies.begin, copies.position) if copies else (raw, raw, raw, raw)
    _turn_backward[(raw.shape[0],)](
        *pulls, out, *angles, raw, q_norm, k_norm, *tree, eps, heads, kv, dim // 2, rows,
        triton.next_power_of_2(kv), block, norms is not None, copies is not None,
        num_warps=_warps(rows * block),
    )  # fmt: skip
    return out


@triton.jit
def _gate_backward(gate_up, grad, grad_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    spot = gate_up + row * 2 * width + at
    gate = tl.load(spot, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(spot + width, mask=inside, other=0.0).to(tl.float32)
    pull = tl.load(grad + row * grad_stride + at, mask=inside, other=0.0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    kind = gate_up.dtype.element_ty
    tl.store(spot, (pull * up * open_ * (1.0 + gate * (1.0 - open_))).to(kind), mask=inside)
    tl.store(spot + width, (pull * gate * open_).to(kind), mask=inside)


def gate_backward(gate_up: Tensor, grad: Tensor) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    grid = (rows, triton.cdiv(width, _GATE_BLOCK))
    _gate_backward[grid](gate_up, grad, grad.stride(0), width, _GATE_BLOCK, num_warps=4)
    return gate_up


def _warps(elements: int) -> int:
    return 1 if elements <= 256 else 2 if elements <= 512 else 4 if elements <= 2048 else 8
