"""Triton kernels of the training pass: the operations between two matrix products, forward and backward.

The same functions as in `training.layer_plain`, one launch each. Arithmetic is fp32, results have the
tensors' dtype. Every program works on its own rows and sums in a fixed order, so that results are
reproducible bit for bit. Imported only where there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hermes.engine.attention.varlen import SharedKeyCopies
from hermes.engine.kernels.rowwise import add_norm, head_tile, rotate_heads, silu_and_mul

__all__ = [
    "add_norm",
    "apply_rope",
    "apply_rope_backward",
    "norm_backward",
    "silu_and_mul",
    "silu_and_mul_backward",
]

_SILU_BLOCK = 512


@triton.jit
def _norm_backward(
    grad, grad_stride, x, weight, residual, out, width, eps, BLOCK: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    in_row = cols < width
    value = tl.load(x + row * width + cols, mask=in_row, other=0.0).to(tl.float32)
    upstream = tl.load(grad + row * grad_stride + cols, mask=in_row, other=0.0).to(tl.float32)
    upstream = upstream * tl.load(weight + cols, mask=in_row, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    projection = tl.sum(upstream * value, 0) / width * scale * scale * scale
    result = upstream * scale - value * projection
    if ADD:
        result += tl.load(residual + row * width + cols, mask=in_row, other=0.0).to(tl.float32)
    tl.store(out + row * width + cols, result.to(out.dtype.element_ty), mask=in_row)


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
def _apply_rope(
    qkv, out, cos, sin, q_norm, k_norm, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, KV_ROWS: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = row * (HEADS + 2 * KV) * 2 * HALF
    first, second = rotate_heads(
        qkv + start, q_norm, k_norm, cos + row * HALF, sin + row * HALF, eps,
        HEADS, KV, HALF, ROWS, BLOCK, NORM,
    )  # fmt: skip
    head = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = (head < HEADS + KV) & (cols < HALF)
    target = out + start + head * 2 * HALF + cols
    tl.store(target, first.to(out.dtype.element_ty), mask=inside)
    tl.store(target + HALF, second.to(out.dtype.element_ty), mask=inside)
    if NORM:  # otherwise out is qkv, and the values are there
        kv_head = tl.arange(0, KV_ROWS)[:, None]
        inside = (kv_head < KV) & (cols < HALF)
        offsets = start + (HEADS + KV + kv_head) * 2 * HALF + cols
        tl.store(out + offsets, tl.load(qkv + offsets, mask=inside), mask=inside)
        tl.store(out + offsets + HALF, tl.load(qkv + offsets + HALF, mask=inside), mask=inside)


def apply_rope(
    qkv: Tensor,
    rope: tuple[Tensor, Tensor],
    shape: tuple[int, int, int],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    heads, kv, dim = shape
    out = qkv if norms is None else torch.empty_like(qkv)
    q_norm, k_norm = norms or rope
    tile = head_tile(heads, kv, dim // 2)
    _apply_rope[(qkv.shape[0],)](
        qkv, out, *rope, q_norm, k_norm, eps, heads, kv, dim // 2, *tile.shape, norms is not None,
        num_warps=tile.warps,
    )  # fmt: skip
    return out


@triton.jit
def _norm_weight(norm, cols, HALF: tl.constexpr):
    return tl.load(norm + cols, mask=cols < HALF, other=0.0).to(tl.float32)


@triton.jit
def _rotate_back(
    first, second, cos, sin, raw, offsets, inside, low_weight, high_weight, eps,
    HALF: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Gradients of the two halves before the rotation, and before the head's norm."""
    low = first * cos + second * sin
    high = second * cos - first * sin
    if NORM:
        low_value = tl.load(raw + offsets, mask=inside, other=0.0).to(tl.float32)
        high_value = tl.load(raw + offsets + HALF, mask=inside, other=0.0).to(tl.float32)
        low, high = low * low_weight, high * high_weight
        square = tl.sum(low_value * low_value, 1) + tl.sum(high_value * high_value, 1)
        scale = tl.rsqrt(square / (2 * HALF) + eps)[:, None]
        projection = (tl.sum(low * low_value, 1) + tl.sum(high * high_value, 1))[:, None] / (2 * HALF)
        projection = projection * scale * scale * scale
        low, high = low * scale - low_value * projection, high * scale - high_value * projection
    return low, high


@triton.jit
def _apply_rope_backward(
    dq, dk, dv, out, cos, sin, raw, q_norm, k_norm, node, subtree_end, key_offsets, position, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, KV_ROWS: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = row * (HEADS + 2 * KV) * 2 * HALF
    cols = tl.arange(0, BLOCK)[None, :]
    c = tl.load(cos + row * HALF + cols, mask=cols < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + row * HALF + cols, mask=cols < HALF, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty

    head = tl.arange(0, ROWS)[:, None]
    inside = (head < HEADS) & (cols < HALF)
    query_ptr = dq + row * HEADS * 2 * HALF + head * 2 * HALF + cols
    first = tl.load(query_ptr, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(query_ptr + HALF, mask=inside, other=0.0).to(tl.float32)
    low_weight = _norm_weight(q_norm, cols, HALF) if NORM else c
    high_weight = _norm_weight(q_norm + HALF, cols, HALF) if NORM else c
    offsets = start + head * 2 * HALF + cols
    low, high = _rotate_back(
        first, second, c, s, raw, offsets, inside, low_weight, high_weight, eps, HALF, NORM
    )  # fmt: skip
    tl.store(out + offsets, low.to(dtype), mask=inside)
    tl.store(out + offsets + HALF, high.to(dtype), mask=inside)

    head = tl.arange(0, KV_ROWS)[:, None]
    inside = (head < KV) & (cols < HALF)
    head_offsets = head * 2 * HALF + cols
    if SHARED:
        first = tl.zeros([KV_ROWS, BLOCK], tl.float32)
        second = tl.zeros([KV_ROWS, BLOCK], tl.float32)
        left = tl.zeros([KV_ROWS, BLOCK], tl.float32)
        right = tl.zeros([KV_ROWS, BLOCK], tl.float32)
        row_node = tl.load(node + row)
        stop = tl.load(subtree_end + row_node)
        offset = tl.load(position + row)
        for reader in range(row_node, stop):
            copy = (tl.load(key_offsets + reader) + offset).to(tl.int64) * (KV * 2 * HALF)
            first += tl.load(dk + copy + head_offsets, mask=inside, other=0.0).to(tl.float32)
            second += tl.load(dk + copy + head_offsets + HALF, mask=inside, other=0.0).to(tl.float32)
            left += tl.load(dv + copy + head_offsets, mask=inside, other=0.0).to(tl.float32)
            right += tl.load(dv + copy + head_offsets + HALF, mask=inside, other=0.0).to(tl.float32)
    else:
        copy = row * (KV * 2 * HALF)
        first = tl.load(dk + copy + head_offsets, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(dk + copy + head_offsets + HALF, mask=inside, other=0.0).to(tl.float32)
        left = tl.load(dv + copy + head_offsets, mask=inside, other=0.0).to(tl.float32)
        right = tl.load(dv + copy + head_offsets + HALF, mask=inside, other=0.0).to(tl.float32)
    low_weight = _norm_weight(k_norm, cols, HALF) if NORM else c
    high_weight = _norm_weight(k_norm + HALF, cols, HALF) if NORM else c
    offsets = start + HEADS * 2 * HALF + head_offsets
    low, high = _rotate_back(
        first, second, c, s, raw, offsets, inside, low_weight, high_weight, eps, HALF, NORM
    )  # fmt: skip
    tl.store(out + offsets, low.to(dtype), mask=inside)
    tl.store(out + offsets + HALF, high.to(dtype), mask=inside)
    offsets += KV * 2 * HALF
    tl.store(out + offsets, left.to(dtype), mask=inside)
    tl.store(out + offsets + HALF, right.to(dtype), mask=inside)


def apply_rope_backward(
    grads: tuple[Tensor, Tensor, Tensor],
    rope: tuple[Tensor, Tensor],
    raw: Tensor,
    shape: tuple[int, int, int],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    copies: SharedKeyCopies | None,
) -> Tensor:
    heads, kv, dim = shape
    out = torch.empty_like(raw)
    q_norm, k_norm = norms or rope
    rows, block = triton.next_power_of_2(heads), triton.next_power_of_2(dim // 2)
    tree = (
        (copies.node, copies.subtree_end, copies.key_offsets, copies.position)
        if copies
        else (raw, raw, raw, raw)
    )
    _apply_rope_backward[(raw.shape[0],)](
        *(grad.contiguous() for grad in grads), out, *rope, raw, q_norm, k_norm, *tree, eps,
        heads, kv, dim // 2, rows, triton.next_power_of_2(kv), block, norms is not None, copies is not None,
        num_warps=_warps(rows * block),
    )  # fmt: skip
    return out


@triton.jit
def _silu_and_mul_backward(gate_up, grad, grad_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = cols < width
    gate_ptr = gate_up + row * 2 * width + cols
    gate = tl.load(gate_ptr, mask=in_row, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + width, mask=in_row, other=0.0).to(tl.float32)
    upstream = tl.load(grad + row * grad_stride + cols, mask=in_row, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    dtype = gate_up.dtype.element_ty
    tl.store(gate_ptr, (upstream * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))).to(dtype), mask=in_row)
    tl.store(gate_ptr + width, (upstream * gate * sigmoid).to(dtype), mask=in_row)


def silu_and_mul_backward(gate_up: Tensor, grad: Tensor) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    grid = (rows, triton.cdiv(width, _SILU_BLOCK))
    _silu_and_mul_backward[grid](gate_up, grad, grad.stride(0), width, _SILU_BLOCK, num_warps=4)
    return gate_up


def _warps(elements: int) -> int:
    return 1 if elements <= 256 else 2 if elements <= 512 else 4 if elements <= 2048 else 8
