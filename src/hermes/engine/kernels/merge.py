"""Merges LoRA deltas into matrices of one shape, those of all layers in one launch.

A result is base + scale · B · A, summed in fp32 and rounded once to the dtype of the base. A tile depends on
the shapes alone, so a matrix gets the same bits alone and among others. Imported only where there is a CUDA
device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLS, _DEPTH = 64, 64, 16
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@triton.jit
def _merge(
    addresses, tiles, scales, inputs, MEMBERS: tl.constexpr, DTYPE: tl.constexpr, LORA: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    matrix = addresses + tl.program_id(2).to(tl.int64) * (3 + MEMBERS)
    tile = tiles + tl.program_id(0) * 6
    first, end, member = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    member_first, a_first, rank = tl.load(tile + 3), tl.load(tile + 4), tl.load(tile + 5)
    base = tl.load(matrix).to(tl.pointer_type(DTYPE))
    out = tl.load(matrix + 1).to(tl.pointer_type(DTYPE))
    a = tl.load(matrix + 2).to(tl.pointer_type(LORA))
    b = tl.load(matrix + 3 + member).to(tl.pointer_type(LORA))
    row = first + tl.arange(0, ROWS)
    col = tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS)
    inside = (row < end)[:, None] & (col < inputs)[None, :]
    offsets = row[:, None] * inputs + col[None, :]
    total = tl.load(base + offsets, mask=inside, other=0.0).to(tl.float32)
    delta = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(0, rank, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        up_mask = (row < end)[:, None] & (depth < rank)[None, :]
        up = tl.load(b + (row - member_first)[:, None] * rank + depth[None, :], mask=up_mask, other=0.0)
        down_mask = (depth < rank)[:, None] & (col < inputs)[None, :]
        down = tl.load(a + (a_first + depth)[:, None] * inputs + col[None, :], mask=down_mask, other=0.0)
        delta = tl.dot(up.to(tl.float32), down.to(tl.float32), delta, input_precision="ieee")
    total += tl.load(scales + member) * delta
    tl.store(out + offsets, total.to(DTYPE), mask=inside)


@lru_cache(maxsize=64)
def _tiles(outputs: tuple[int, ...], ranks: tuple[int, ...], device: torch.device) -> Tensor:
    """Rows of the stacked matrix in tiles that lie in one member each: [tiles, 6]."""
    tiles, member_first, a_first = [], 0, 0
    for member, (width, rank) in enumerate(zip(outputs, ranks, strict=True)):
        end = member_first + width
        tiles += [
            (first, min(first + _ROWS, end), member, member_first, a_first, rank)
            for first in range(member_first, end, _ROWS)
        ]
        member_first, a_first = end, a_first + rank
    return torch.tensor(tiles, dtype=torch.int64, device=device)


@lru_cache(maxsize=64)
def _scales(scales: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(scales, dtype=torch.float32, device=device)


def merge(
    matrices: Sequence[tuple[Tensor, Tensor, Tensor, tuple[Tensor | None, ...]]],
    outputs: tuple[int, ...],
    scales: tuple[float, ...],
) -> None:
    """Writes merged matrices: each is given as base, result, A and one B a member.

    Base and result are [sum of outputs, in], A is [sum of ranks, in], B [out, rank]; a member without B keeps
    the base's rows. All tensors are contiguous, and alike in shape and dtype from one matrix to the next.
    """
    base, _, a, b = matrices[0]
    device, inputs = base.device, base.shape[1]
    ranks = tuple(0 if member is None else member.shape[1] for member in b)
    tiles = _tiles(outputs, ranks, device)
    addresses = torch.tensor(
        [
            [
                source.data_ptr(), target.data_ptr(), down.data_ptr(),
                *(0 if member is None else member.data_ptr() for member in up),
            ]
            for source, target, down, up in matrices
        ],
        dtype=torch.int64,
    )  # fmt: skip
    if device.type == "cuda":  # pinned, so that the copy does not wait for the device
        addresses = addresses.pin_memory().to(device, non_blocking=True)
    grid = (tiles.shape[0], triton.cdiv(inputs, _COLS), len(matrices))
    _merge[grid](
        addresses, tiles, _scales(scales, device), inputs, len(outputs), _TYPES[base.dtype], _TYPES[a.dtype],
        _ROWS, _COLS, _DEPTH, num_warps=4,
    )  # fmt: skip
