"""Triton kernels of the decode step: fewer, larger launches than torch's own operations make.

A decode step of a small model is bound by launches and by reading the cache once. So everything between two
matrix products is one kernel: rotary, head norms and the write to the cache; attention over the pool; and
those of `rowwise`. Arithmetic is fp32, results have the tensors' dtype. Imported only where
there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hermes.engine.kernels.rowwise import rotate_head

_LN2_INVERSE = 1.4426950408889634
MAX_HEADS_PER_KV = 16
"""The smallest tile of a matrix product: query heads that share a key head are padded to it."""
_TILE, _TILE_BYTES = 64, 16384
"""Upper limits of a tile of one key head in shared memory: cached tokens, and bytes."""
_PROGRAMS = 264
"""Two for each of an H200's multiprocessors; with fewer sequences, each is read in several parts."""


@triton.jit
def _rotate_and_cache(
    qkv, q, keys, values, slot_starts, lengths, cos, sin, q_norm, k_norm, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    cols = tl.arange(0, BLOCK)
    in_half = cols < HALF
    source = qkv + row * (HEADS + 2 * KV) * 2 * HALF + head * 2 * HALF
    length = tl.load(lengths + row)
    kv_index = tl.load(slot_starts + row) + length
    if head >= HEADS + KV:
        left = tl.load(source + cols, mask=in_half, other=0.0)
        right = tl.load(source + HALF + cols, mask=in_half, other=0.0)
        target = values + (kv_index * KV + head - HEADS - KV) * 2 * HALF
        tl.store(target + cols, left.to(values.dtype.element_ty), mask=in_half)
        tl.store(target + HALF + cols, right.to(values.dtype.element_ty), mask=in_half)
        return
    norm = q_norm if head < HEADS else k_norm
    first, second = rotate_head(source, norm, cos + length * HALF, sin + length * HALF, eps, cols, HALF, NORM)
    if head < HEADS:
        target = q + (row * HEADS + head) * 2 * HALF
        tl.store(target + cols, first.to(q.dtype.element_ty), mask=in_half)
        tl.store(target + HALF + cols, second.to(q.dtype.element_ty), mask=in_half)
    else:
        target = keys + (kv_index * KV + head - HEADS) * 2 * HALF
        tl.store(target + cols, first.to(keys.dtype.element_ty), mask=in_half)
        tl.store(target + HALF + cols, second.to(keys.dtype.element_ty), mask=in_half)


def rotate_and_cache(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    slot_starts: Tensor,
    lengths: Tensor,
    rope: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """Rotates queries and keys of one token per row, at position `lengths`, and caches keys and values.

    qkv is [rows, (heads + 2 kv) * D], keys and values are one layer of the pool, [tokens, kv, D]; `rope` has
    the cosines and sines of every position, [positions, D / 2]. Returns the rotated queries [rows, heads, D].
    """
    rows, (kv, dim) = qkv.shape[0], keys.shape[1:]
    heads = qkv.shape[1] // dim - 2 * kv
    q = torch.empty(rows, heads, dim, device=qkv.device, dtype=qkv.dtype)
    q_norm, k_norm = norms or rope
    half = dim // 2
    _rotate_and_cache[(rows, heads + 2 * kv)](
        qkv, q, keys, values, slot_starts, lengths, *rope, q_norm, k_norm, eps,
        heads, kv, half, triton.next_power_of_2(half), norms is not None, num_warps=1,
    )  # fmt: skip
    return q


@triton.jit
def _attend(
    q, keys, values, out, peaks, sums, slot_starts, lengths, window, scale,
    KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PARTS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    part = tl.program_id(2)
    end = tl.load(lengths + row) + 1
    begin = tl.maximum(end - window, 0)
    part_size = tl.cdiv(end - begin, PARTS)
    start = begin + part * part_size
    stop = tl.minimum(start + part_size, end)
    cols = tl.arange(0, BLOCK)
    group_head = tl.arange(0, ROWS)
    real = (
        (group_head < GROUP)[:, None]
        if BLOCK == DIM
        else (group_head < GROUP)[:, None] & (cols < DIM)[None, :]
    )
    query_offsets = ((row * KV + head) * GROUP + group_head) * DIM
    query = tl.load(q + query_offsets[:, None] + cols[None, :], mask=real, other=0.0)
    query = query.to(keys.dtype.element_ty)
    slot_base = (tl.load(slot_starts + row) * KV + head) * DIM
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(start, stop, TILE):
        token = first + tl.arange(0, TILE)
        inside = token < stop
        valid = inside[:, None] if BLOCK == DIM else inside[:, None] & (cols < DIM)[None, :]
        token_offsets = slot_base + token.to(tl.int64) * (KV * DIM)
        key = tl.load(keys + token_offsets[:, None] + cols[None, :], mask=valid, other=0.0)
        if EXACT:
            score = tl.dot(query, tl.trans(key), input_precision="ieee")
        else:
            score = tl.dot(query, tl.trans(key))
        score = tl.where(inside[None, :], score * scale, -float("inf"))
        new_peak = tl.maximum(peak, tl.max(score, 1))
        weight = tl.exp2(score - new_peak[:, None])
        rescale = tl.exp2(peak - new_peak)
        value = tl.load(values + token_offsets[:, None] + cols[None, :], mask=valid, other=0.0)
        if EXACT:
            tile_out = tl.dot(weight, value, input_precision="ieee")
        else:
            tile_out = tl.dot(weight.to(value.dtype), value)
        weighted = weighted * rescale[:, None] + tile_out
        total = total * rescale + tl.sum(weight, 1)
        peak = new_peak
    if PARTS == 1:
        normalised = weighted / total[:, None]
        tl.store(out + query_offsets[:, None] + cols[None, :], normalised.to(out.dtype.element_ty), mask=real)
    else:
        partial = ((row * KV + head) * PARTS + part) * GROUP + group_head
        tl.store(out + partial[:, None] * DIM + cols[None, :], weighted, mask=real)
        tl.store(peaks + partial, peak, mask=group_head < GROUP)
        tl.store(sums + partial, total, mask=group_head < GROUP)


@triton.jit
def _combine(
    partials, peaks, sums, out,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr, PADDED_PARTS: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    group_head = tl.program_id(1)
    part = tl.arange(0, PADDED_PARTS)
    cols = tl.arange(0, BLOCK)
    inside = part < PARTS
    part_offsets = (pair * PARTS + part) * GROUP + group_head
    peak = tl.load(peaks + part_offsets, mask=inside, other=-float("inf"))
    highest = tl.max(peak, 0)
    weight = tl.exp2(peak - highest)
    total = tl.sum(weight * tl.load(sums + part_offsets, mask=inside, other=0.0), 0)
    real = inside[:, None] & (cols < DIM)[None, :]
    partial = tl.load(partials + part_offsets[:, None] * DIM + cols[None, :], mask=real, other=0.0)
    combined = tl.sum(partial * weight[:, None], 0) / total
    tl.store(
        out + (pair * GROUP + group_head) * DIM + cols, combined.to(out.dtype.element_ty), mask=cols < DIM
    )


def attend_rows(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slot_starts: Tensor,
    lengths: Tensor,
    window: int | None,
    *,
    split: bool = True,
) -> Tensor:
    """Attention of one query per row, q [rows, heads, D], over tokens 0 … lengths of the row's slot.

    With `split`, in a small batch the tokens of a row are divided among several programs, whose outputs are
    then combined. Without it a row's result does not depend on the number of rows.
    """
    rows, heads, dim = q.shape
    kv = keys.shape[1]
    group = heads // kv
    block = max(16, triton.next_power_of_2(dim))
    tile = max(16, min(_TILE, _TILE_BYTES // (block * keys.itemsize)))
    parts = max(1, min(16, _PROGRAMS // (rows * kv))) if split else 1
    exact = keys.dtype == torch.float32
    out = torch.empty_like(q)
    if parts == 1:
        target, peaks, sums = out, out, out
    else:
        target = torch.empty(rows * kv * parts * group, dim, device=q.device, dtype=torch.float32)
        peaks, sums = torch.empty(2, rows * kv * parts * group, device=q.device, dtype=torch.float32)
    _attend[(rows, kv, parts)](
        q, keys, values, target, peaks, sums, slot_starts, lengths,
        (1 << 30) if window is None else window, dim**-0.5 * _LN2_INVERSE,
        kv, group, dim, block, MAX_HEADS_PER_KV, tile, parts, exact,
        num_warps=4 if dim > 64 else 2, num_stages=3,
    )  # fmt: skip
    if parts > 1:
        _combine[(rows * kv, group)](
            target, peaks, sums, out, group, dim, block, parts, triton.next_power_of_2(parts), num_warps=1
        )
    return out


@triton.jit(do_not_specialize=["source", "tokens"])
def _copy(
    keys, values, source, targets, tokens, layer_size, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(1).to(tl.int64)
    target = tl.load(targets + tl.program_id(2))
    elements = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_slot = elements < tokens * width
    start = layer * layer_size + elements
    tl.store(
        keys + start + target * width, tl.load(keys + start + source * width, mask=in_slot), mask=in_slot
    )
    tl.store(
        values + start + target * width, tl.load(values + start + source * width, mask=in_slot), mask=in_slot
    )


def copy_slots(keys: Tensor, values: Tensor, source: int, targets: Tensor, tokens: int) -> None:
    """Copies `tokens` keys and values of every layer from index `source` to each index of `targets` [n]."""
    layers, pool_tokens, kv, dim = keys.shape
    width, block = kv * dim, 4096
    grid = (triton.cdiv(tokens * width, block), layers, len(targets))
    _copy[grid](
        keys, values, source, targets, tokens, pool_tokens * width, width, block, num_warps=8
    )  # fmt: skip
