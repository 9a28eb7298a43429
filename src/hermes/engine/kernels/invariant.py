"""A batch-invariant matrix product: a row of the result has the same bits whatever rows are beside it.

cuBLAS picks an algorithm by the number of rows, and some divide the inputs among several programs, so the
same row can get another order of sums, and another rounding, in a batch of another size. Here every element
is summed over the inputs in their order, whatever the tile is. Only forward passes that must agree bit for
bit use it (`--exact`): it is slower. Imported only where there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PROGRAMS = 132
"""Multiprocessors of an H200: large tiles are the fastest if there are so many."""


@triton.jit
def _linear(
    x, weight, bias, out, rows, outputs, inputs, x_stride, weight_stride,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, BIAS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    # Neighbouring programs use the same tile of the weight, which is the larger matrix.
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS)
    depth = tl.arange(0, DEPTH)
    x_tile = x + row[:, None] * x_stride + depth[None, :]
    weight_tile = weight + col[None, :] * weight_stride + depth[:, None]
    total = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, inputs, DEPTH):
        inside = (first + depth < inputs) | EVEN
        left = tl.load(x_tile + first, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        right = tl.load(weight_tile + first, mask=inside[:, None] & (col < outputs)[None, :], other=0.0)
        total = tl.dot(left, right, total)
    if BIAS:
        total += tl.load(bias + col, mask=col < outputs, other=0.0).to(tl.float32)[None, :]
    target = out + row[:, None] * outputs + col[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (col < outputs)[None, :])


def choose_tile(rows: int, outputs: int) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps and stages; all tiles give the same bits."""
    if rows >= 128 and triton.cdiv(rows, 128) * triton.cdiv(outputs, 128) >= _PROGRAMS:
        return 128, 128, 64, 8, 3
    row_tiles = triton.cdiv(rows, 64)
    for cols in (64, 32):
        if row_tiles * triton.cdiv(outputs, cols) >= _PROGRAMS // 2:
            return 64, cols, 128, 4, 4
    return 64, 16, 128, 4, 4


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """x [T, in] · weightᵀ [in, out] + bias in half precision; the result in `dtype`, or that of x."""
    rows, (outputs, inputs) = x.shape[0], weight.shape
    out = torch.empty(rows, outputs, device=x.device, dtype=dtype or x.dtype)
    tile_rows, tile_cols, depth, warps, stages = choose_tile(rows, outputs)
    grid = (triton.cdiv(rows, tile_rows), triton.cdiv(outputs, tile_cols))
    _linear[grid](
        x, weight, weight if bias is None else bias, out, rows, outputs, inputs, x.stride(0),
        weight.stride(0), tile_rows, tile_cols, depth, bias is not None, inputs % depth == 0,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
