"""Triton kernels that add LoRA deltas to the products of a pass whose rows have different adapters.

Rows are computed in tiles, each of one adapter (`lora.adapter_table`), whose matrices are read where they
lie: a pass over many adapters is one launch, and a captured launch serves whatever adapters the table names
when it is replayed. `shrink` computes x · Aᵀ in chunks of the inputs with fixed bounds; `expand` sums the
chunks, multiplies with B and rounds the sum of base product, delta and bias once. Every element is summed in
the same order, whatever the tile is and whatever rows are beside it. Imported only where there is a CUDA
device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_CHUNK = 1024
"""Inputs that one program sums."""
_SHRINK_COLS, _SHRINK_DEPTH = 32, 128
_EXPAND_COLS, _EXPAND_DEPTH = 128, 32
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _shrink(
    x, x_stride, entries, slot_stride, tiles, down, rows, inputs, width,
    DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    tile = tiles + tl.program_id(0) * 3
    first, end = tl.load(tile), tl.load(tile + 1)
    entry = entries + tl.load(tile + 2).to(tl.int64) * slot_stride
    ranks = tl.load(entry + 1)
    col = tl.program_id(1) * COLS + tl.arange(0, COLS)
    if (first < end) & (tl.program_id(1) * COLS < ranks):
        # Addresses are multiples of 16; without the hint each load would be of one element.
        a = tl.multiple_of(tl.load(entry).to(tl.pointer_type(DTYPE)), 16)
        row = first.to(tl.int64) + tl.arange(0, ROWS)
        chunk = tl.program_id(2)
        total = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(chunk * CHUNK, min(inputs, chunk * CHUNK + CHUNK), DEPTH):
            depth = start + tl.arange(0, DEPTH)
            in_row = depth < inputs
            left = tl.load(
                x + row[:, None] * x_stride + depth[None, :],
                mask=(row < end)[:, None] & in_row[None, :],
                other=0.0,
            )
            right = tl.load(
                a + col[None, :] * inputs + depth[:, None],
                mask=(col < ranks)[None, :] & in_row[:, None],
                other=0.0,
            )
            total = tl.dot(left, right, total, input_precision=PRECISION)
        target = down + (chunk.to(tl.int64) * rows + row)[:, None] * width + col[None, :]
        tl.store(target, total, mask=(row < end)[:, None] & (col < ranks)[None, :])


@triton.jit
def _member(program, W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, COLS: tl.constexpr):
    """The linear of the group that a tile of columns lies in: its number, width and first column, and the
    first column of the tile within it."""
    tiles_0: tl.constexpr = (W0 + COLS - 1) // COLS
    tiles_1: tl.constexpr = (W1 + COLS - 1) // COLS
    member = (program >= tiles_0).to(tl.int32) + (program >= tiles_0 + tiles_1).to(tl.int32)
    first_tile = tl.where(member == 0, 0, tl.where(member == 1, tiles_0, tiles_0 + tiles_1))
    first = tl.where(member == 0, 0, tl.where(member == 1, W0, W0 + W1))
    width = tl.where(member == 0, W0, tl.where(member == 1, W1, W2))
    return member, width, first, (program - first_tile) * COLS


@triton.jit
def _expand(
    base, out, bias, entries, slot_stride, tiles, down, rows, outputs, width, chunks,
    W0: tl.constexpr, W1: tl.constexpr, W2: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
    BIAS: tl.constexpr, IN_PLACE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tile = tiles + tl.program_id(1) * 3
    first, end = tl.load(tile), tl.load(tile + 1)
    member, member_width, member_first, col_first = _member(tl.program_id(0), W0, W1, W2, COLS)
    fields = entries + tl.load(tile + 2).to(tl.int64) * slot_stride + 2 + member * 4
    rank = tl.multiple_of(tl.load(fields + 2), 16)
    if (first < end) & ((rank > 0) | (not IN_PLACE)):
        b = tl.multiple_of(tl.load(fields).to(tl.pointer_type(DTYPE)), 16)
        a_first = tl.multiple_of(tl.load(fields + 1), 16)
        scale = tl.load(fields + 3).to(tl.int32).to(tl.float32, bitcast=True)
        row = first.to(tl.int64) + tl.arange(0, ROWS)
        col = col_first + tl.arange(0, COLS)
        in_rows, in_cols = (row < end)[:, None], (col < member_width)[None, :]
        delta = tl.zeros([ROWS, COLS], tl.float32)
        for start in range(0, rank, DEPTH):
            depth = start + tl.arange(0, DEPTH)
            in_rank = depth < rank
            left = tl.zeros([ROWS, DEPTH], tl.float32)
            for chunk in range(chunks):
                source = down + (chunk * rows + row)[:, None] * width + (a_first + depth)[None, :]
                left += tl.load(source, mask=in_rows & in_rank[None, :], other=0.0)
            right = tl.load(
                b + col[None, :].to(tl.int64) * rank + depth[:, None],
                mask=in_cols & in_rank[:, None],
                other=0.0,
            )
            delta = tl.dot(left.to(DTYPE), right, delta, input_precision=PRECISION)
        offsets = row[:, None] * outputs + (member_first + col)[None, :]
        total = tl.load(base + offsets, mask=in_rows & in_cols, other=0.0).to(tl.float32) + scale * delta
        if BIAS:
            total += tl.load(bias + member_first + col, mask=col < member_width, other=0.0).to(tl.float32)[
                None, :
            ]
        tl.store(out + offsets, total.to(out.dtype.element_ty), mask=in_rows & in_cols)


def shrink(x: Tensor, entries: Tensor, tiles: Tensor, tile_rows: int, width: int) -> Tensor:
    """x · Aᵀ of each row's adapter, as partial sums [chunks, T, width] in fp32.

    `entries` [slots, fields] has the addresses of a group of linears and `tiles` the rows, as in
    `lora.adapter_table`; `width`: the most rows that a stacked A has.
    """
    rows, inputs = x.shape
    chunks = triton.cdiv(inputs, _CHUNK)
    down = torch.empty(chunks, rows, width, device=x.device, dtype=torch.float32)
    _shrink[(len(tiles), triton.cdiv(width, _SHRINK_COLS), chunks)](
        x, x.stride(0), entries, entries.stride(0), tiles, down, rows, inputs, width, _TYPES[x.dtype],
        _precision(x.dtype), tile_rows, _SHRINK_COLS, _SHRINK_DEPTH, _CHUNK, num_warps=4, num_stages=3,
    )  # fmt: skip
    return down


def expand(
    base: Tensor,
    down: Tensor,
    bias: Tensor | None,
    entries: Tensor,
    tiles: Tensor,
    tile_rows: int,
    outputs: tuple[int, ...],
    *,
    out: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """base + scale · down · Bᵀ + bias, [T, sum of outputs], in `out`, which may be `base`.

    `outputs`: the width of each linear of the group, at most three. `dtype`: that of the adapters' matrices.
    """
    columns = sum(triton.cdiv(member, _EXPAND_COLS) for member in outputs)
    _expand[(columns, len(tiles))](
        base, out, base if bias is None else bias, entries, entries.stride(0), tiles, down, len(base),
        sum(outputs), down.shape[2], down.shape[0], *(*outputs, 0, 0)[:3], _TYPES[dtype], _precision(dtype),
        bias is not None, out is base, tile_rows, _EXPAND_COLS, _EXPAND_DEPTH, num_warps=4,
    )  # fmt: skip
    return out


def _precision(dtype: torch.dtype) -> str:
    return "ieee" if dtype == torch.float32 else "tf32"
