"""Triton kernels that sampling and training share: residual and norm, rotary embedding, gated activation.

Both sides run the same code on a row, with the same number of warps, so a row has the same bits in both.
Arithmetic is fp32, results have the tensors' dtype. Imported only where there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_norm(x, delta, weight, total, out, width, eps, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    in_row = cols < width
    value = tl.load(x + row * width + cols, mask=in_row, other=0.0)
    if ADD:
        added = tl.load(delta + row * width + cols, mask=in_row, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
        tl.store(total + row * width + cols, value, mask=in_row)
    x_fp32 = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x_fp32 * x_fp32, 0) / width + eps)
    normed = (x_fp32 * scale).to(value.dtype).to(tl.float32)
    normed = normed * tl.load(weight + cols, mask=in_row, other=0.0).to(tl.float32)
    tl.store(out + row * width + cols, normed.to(value.dtype), mask=in_row)


def add_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, *, in_place: bool = False
) -> tuple[Tensor, Tensor]:
    """x + delta, which with `in_place` overwrites x, and its root-mean-square norm, [T, width] each."""
    rows, width = x.shape
    total = x if delta is None or in_place else torch.empty_like(x)
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        x, x if delta is None else delta, weight, total, out, width, eps, block, delta is not None,
        num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return total, out


@triton.jit
def rotate_heads(
    source, q_norm, k_norm, cos, sin, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """The two halves of the query and key heads of a token at `source`, normed and rotated, in fp32."""
    head = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    in_half = cols < HALF
    inside = (head < HEADS + KV) & in_half
    left = tl.load(source + head * 2 * HALF + cols, mask=inside, other=0.0)
    right = tl.load(source + head * 2 * HALF + HALF + cols, mask=inside, other=0.0)
    dtype = left.dtype
    low, high = left.to(tl.float32), right.to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * HALF) + eps)[:, None]
        low_weight = _weight_by_head(q_norm, k_norm, head, cols, HEADS, HALF)
        high_weight = _weight_by_head(q_norm + HALF, k_norm + HALF, head, cols, HEADS, HALF)
        low = (low * scale).to(dtype).to(tl.float32) * low_weight
        high = (high * scale).to(dtype).to(tl.float32) * high_weight
    c = tl.load(cos + cols, mask=in_half, other=0.0).to(tl.float32)
    s = tl.load(sin + cols, mask=in_half, other=0.0).to(tl.float32)
    return low * c - high * s, high * c + low * s


@triton.jit
def _weight_by_head(q_norm, k_norm, head, cols, HEADS: tl.constexpr, HALF: tl.constexpr):
    """The norm weights of each head: q_norm for query heads, k_norm for the others."""
    of_q = tl.load(q_norm + cols, mask=cols < HALF, other=0.0).to(tl.float32)
    of_k = tl.load(k_norm + cols, mask=cols < HALF, other=0.0).to(tl.float32)
    return tl.where(head < HEADS, of_q, of_k)


@dataclass(frozen=True, slots=True)
class HeadTile:
    """The tile of `rotate_heads`: with another number of warps, norms would be summed in another order."""

    shape: tuple[int, int, int]
    """Rows of query and key heads, rows of value heads, and columns of a half; powers of two."""
    warps: int


def head_tile(heads: int, kv: int, half: int) -> HeadTile:
    rows, block = triton.next_power_of_2(heads + kv), triton.next_power_of_2(half)
    warps = 1 if rows * block <= 128 else 4
    return HeadTile((rows, triton.next_power_of_2(kv), block), warps)


@triton.jit
def _silu_and_mul(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    in_row = cols < width
    gate = tl.load(gate_up + row * 2 * width + cols, mask=in_row, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + cols, mask=in_row, other=0.0)
    gate_fp32 = gate.to(tl.float32)
    silu = (gate_fp32 * tl.sigmoid(gate_fp32)).to(gate.dtype).to(tl.float32)
    tl.store(out + row * width + cols, (silu * up.to(tl.float32)).to(gate.dtype), mask=in_row)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(left half) * right half of [rows, 2 * width]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _silu_and_mul[(rows, triton.cdiv(width, block))](gate_up, out, width, block, num_warps=4)
    return out
