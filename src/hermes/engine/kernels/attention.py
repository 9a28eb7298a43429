"""Triton kernels of attention: one query per sequence (decode), and blocks of queries (prefill, training).

Both give a query the same bits. Keys are read in tiles and tiles are summed in chunks, whose bounds are
multiples of `_CHUNK` tokens of the sequence; chunks are combined in their order. So the result depends
neither on the queries beside it nor on how many programs share the work. Sums over keys are matrix products,
because the order of a reduction would depend on the number of warps. Scores and sums are fp32, results have
the tensors' dtype. Imported only where there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from hermes.engine.attention.query_blocks import QUERY_ROWS, QueryBlocks

_LN2 = 0.6931471805599453
MAX_HEADS_PER_KV = 16
"""The smallest tile of a matrix product: query heads that share a key head are padded to it."""
_TILE, _TILE_BYTES = 64, 16384
"""Upper limits of a tile of one key head in shared memory: cached tokens, and bytes."""
_CHUNK = 128
"""Tokens that are summed before they are combined with those before them; a multiple of `_TILE`."""
_PROGRAMS = 264
"""Two for each of an H200's multiprocessors; with fewer sequences, their chunks are divided."""
_MAX_PARTS = 64
"""Upper limit of the programs among which the chunks of a sequence are divided."""
_PARTIAL_BYTES = 1 << 26
"""Upper limit of the memory for the states of divided chunks."""


@triton.jit
def _empty(ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The state of no keys: the highest score, the sum of the weights, the weighted values."""
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    return peak, tl.zeros([ROWS, 8], tl.float32), tl.zeros([ROWS, BLOCK], tl.float32)


@triton.jit
def _add_tile(
    query, key, value, visible, scale, peak, total, weighted,
    TILE: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """The state after one more tile of keys; `scale` is that of base-2 scores."""
    precision: tl.constexpr = "ieee" if IEEE else "tf32"
    score = tl.dot(query, tl.trans(key), input_precision=precision)
    score = tl.where(visible, score * scale, -float("inf"))
    new_peak = tl.maximum(peak, tl.max(score, 1))
    level = tl.where(new_peak == -float("inf"), 0.0, new_peak)
    weight = tl.exp2(score - level[:, None]).to(value.dtype)
    rescale = tl.exp2(peak - level)[:, None]
    unit_weights = tl.full([TILE, 8], 1.0, value.dtype)
    weighted = weighted * rescale + tl.dot(weight, value, input_precision=precision)
    total = total * rescale + tl.dot(weight, unit_weights, input_precision=precision)
    return new_peak, total, weighted


@triton.jit
def _combine(peak, total, weighted, chunk_peak, chunk_total, chunk_weighted):
    """The state of the chunks so far and of the next. Rounding is explicit, so every kernel has the same."""
    new_peak = tl.maximum(peak, chunk_peak)
    level = tl.where(new_peak == -float("inf"), 0.0, new_peak)
    old, new = tl.exp2(peak - level)[:, None], tl.exp2(chunk_peak - level)[:, None]
    return new_peak, tl.fma(total, old, chunk_total * new), tl.fma(weighted, old, chunk_weighted * new)


@triton.jit
def _attend_rows(
    q, keys, values, out, peaks, sums, slot_starts, lengths, window, scale, kv_stride, chunks,
    KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, PARTS: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    end = tl.load(lengths + row) + 1
    begin = tl.maximum(end - window, 0)
    cols = tl.arange(0, BLOCK)
    group_head = tl.arange(0, ROWS)
    in_head = cols < DIM
    real = (group_head < GROUP)[:, None] & in_head[None, :]
    query_offsets = ((row * KV + head) * GROUP + group_head) * DIM
    query = tl.load(q + query_offsets[:, None] + cols[None, :], mask=real, other=0.0)
    query = query.to(keys.dtype.element_ty)
    slot_base = tl.load(slot_starts + row).to(tl.int64) * kv_stride + head * DIM
    peak, total, weighted = _empty(ROWS, BLOCK)
    first_chunk = begin // CHUNK
    for chunk in range(first_chunk + tl.program_id(2), tl.cdiv(end, CHUNK), PARTS):
        chunk_peak, chunk_total, chunk_weighted = _empty(ROWS, BLOCK)
        for first in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, end), TILE):
            token = first + tl.arange(0, TILE)
            visible = (token >= begin) & (token < end)
            offsets = slot_base + token.to(tl.int64) * kv_stride
            inside = visible[:, None] & in_head[None, :]
            key = tl.load(keys + offsets[:, None] + cols[None, :], mask=inside, other=0.0)
            value = tl.load(values + offsets[:, None] + cols[None, :], mask=inside, other=0.0)
            chunk_peak, chunk_total, chunk_weighted = _add_tile(
                query, key, value, visible[None, :], scale, chunk_peak, chunk_total, chunk_weighted,
                TILE, IEEE,
            )  # fmt: skip
        if PARTS > 1:
            partial = ((row * KV + head) * chunks + chunk - first_chunk) * GROUP + group_head
            tl.store(out + partial[:, None] * DIM + cols[None, :], chunk_weighted, mask=real)
            tl.store(peaks + partial, chunk_peak, mask=group_head < GROUP)
            tl.store(sums + partial, tl.max(chunk_total, 1), mask=group_head < GROUP)
        else:
            peak, total, weighted = _combine(
                peak, total, weighted, chunk_peak, chunk_total, chunk_weighted
            )  # fmt: skip
    if PARTS == 1:
        result = weighted / tl.max(total, 1)[:, None]
        tl.store(out + query_offsets[:, None] + cols[None, :], result.to(out.dtype.element_ty), mask=real)


@triton.jit
def _combine_chunks(
    partials, peaks, sums, out, lengths, window, chunks,
    KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    pair = row * KV + tl.program_id(1)
    end = tl.load(lengths + row) + 1
    begin = tl.maximum(end - window, 0)
    cols = tl.arange(0, BLOCK)
    group_head = tl.arange(0, ROWS)
    in_group = group_head < GROUP
    real = in_group[:, None] & (cols < DIM)[None, :]
    peak, total, weighted = _empty(ROWS, BLOCK)
    for number in range(0, (end - 1) // CHUNK - begin // CHUNK + 1):
        partial = (pair * chunks + number) * GROUP + group_head
        chunk_peak = tl.load(peaks + partial, mask=in_group, other=0.0)
        chunk_total = tl.load(sums + partial, mask=in_group, other=0.0)[:, None] + tl.zeros(
            [ROWS, 8], tl.float32
        )
        chunk_weighted = tl.load(partials + partial[:, None] * DIM + cols[None, :], mask=real, other=0.0)
        peak, total, weighted = _combine(peak, total, weighted, chunk_peak, chunk_total, chunk_weighted)
    result = weighted / tl.max(total, 1)[:, None]
    target = out + (pair * GROUP + group_head)[:, None] * DIM + cols[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=real)


def attend_rows(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slot_starts: Tensor,
    lengths: Tensor,
    longest: int,
    window: int | None,
) -> Tensor:
    """Attention of one query per row, q [rows, heads, D], over tokens 0 … lengths of the row's slot.

    keys and values are [tokens, kv, D]; no row is longer than `longest` tokens. In a small batch the chunks
    of a row are divided among several programs.
    """
    rows, heads, dim = q.shape
    kv = keys.shape[1]
    head = _HeadShape.of(keys, heads // kv)
    span = longest if window is None else min(window + _CHUNK, longest)
    chunks = triton.cdiv(span, _CHUNK)
    partial_rows = rows * kv * chunks * head.group
    parts = min(chunks, _MAX_PARTS, _PROGRAMS // (rows * kv))
    if parts <= 1 or partial_rows * dim * 4 > _PARTIAL_BYTES:
        parts = 1
    out = torch.empty_like(q)
    target, peaks, sums = out, out, out
    if parts > 1:
        target = torch.empty(partial_rows, dim, device=q.device, dtype=torch.float32)
        peaks, sums = torch.empty(2, partial_rows, device=q.device, dtype=torch.float32)
    limit = _limit(window)
    _attend_rows[(rows, kv, parts)](
        q, keys, values, target, peaks, sums, slot_starts, lengths, limit, head.scale, keys.stride(0), chunks,
        kv, head.group, dim, head.block, MAX_HEADS_PER_KV, head.tile, _CHUNK, parts,
        keys.dtype == torch.float32, num_warps=1 if dim <= 64 and parts == 1 else 2, num_stages=3,
    )  # fmt: skip
    if parts > 1:
        _combine_chunks[(rows, kv)](
            target, peaks, sums, out, lengths, limit, chunks,
            kv, head.group, dim, head.block, triton.next_power_of_2(head.group), _CHUNK, num_warps=2,
        )  # fmt: skip
    return out


@triton.jit
def _attend_blocks(
    q, keys, values, out, lse, first_rows, counts, key_starts, positions, window, scale, q_stride, kv_stride,
    queries,
    KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, LSE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1)
    first_row = tl.load(first_rows + block).to(tl.int64)
    count = tl.load(counts + block)
    first_position = tl.load(positions + block)
    cols = tl.arange(0, BLOCK)
    in_head = cols < DIM
    number = tl.arange(0, ROWS) // GROUP
    group_head = tl.arange(0, ROWS) % GROUP
    real = (number < count)[:, None] & in_head[None, :]
    query_rows = first_row + number
    head_offsets = (head * GROUP + group_head) * DIM
    query = tl.load(q + (query_rows * q_stride + head_offsets)[:, None] + cols[None, :], mask=real, other=0.0)
    position = first_position + number
    end = first_position + count
    begin = tl.maximum(first_position + 1 - window, 0) // TILE * TILE
    slot_base = tl.load(key_starts + block).to(tl.int64) * kv_stride + head * DIM
    peak, total, weighted = _empty(ROWS, BLOCK)
    chunk_peak, chunk_total, chunk_weighted = _empty(ROWS, BLOCK)
    for first in range(begin, end, TILE):
        token = first + tl.arange(0, TILE)
        visible = (token[None, :] <= position[:, None]) & (token[None, :] > position[:, None] - window)
        offsets = slot_base + token.to(tl.int64) * kv_stride
        inside = (token < end)[:, None] & in_head[None, :]
        key = tl.load(keys + offsets[:, None] + cols[None, :], mask=inside, other=0.0)
        value = tl.load(values + offsets[:, None] + cols[None, :], mask=inside, other=0.0)
        chunk_peak, chunk_total, chunk_weighted = _add_tile(
            query, key, value, visible, scale, chunk_peak, chunk_total, chunk_weighted, TILE, False
        )  # fmt: skip
        if (first + TILE) % CHUNK == 0 or first + TILE >= end:
            peak, total, weighted = _combine(peak, total, weighted, chunk_peak, chunk_total, chunk_weighted)
            chunk_peak, chunk_total, chunk_weighted = _empty(ROWS, BLOCK)
    whole = tl.max(total, 1)
    target = out + (query_rows * (KV * GROUP * DIM) + head_offsets)[:, None] + cols[None, :]
    tl.store(target, (weighted / whole[:, None]).to(out.dtype.element_ty), mask=real)
    if LSE:
        natural = (peak + tl.log2(whole)) * 0.6931471805599453
        tl.store(lse + (head * GROUP + group_head) * queries + query_rows, natural, mask=number < count)


def attend_blocks(
    q: Tensor, keys: Tensor, values: Tensor, blocks: QueryBlocks, window: int | None, *, lse: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention of the queries [T, heads, D] in blocks, and with `lse` the log-sum-exp of scores [heads, T].

    keys and values are [tokens, kv, D], in half precision. Rows of q, keys and values need not be adjacent.
    """
    queries, heads, dim = q.shape
    kv = keys.shape[1]
    if q.stride()[1:] != (dim, 1):
        q = q.contiguous()
    head = _HeadShape.of(keys, heads // kv)
    out = torch.empty(queries, heads, dim, device=q.device, dtype=q.dtype)
    log_sums = torch.empty(heads, queries, device=q.device, dtype=torch.float32) if lse else out
    assert keys.stride(0) == values.stride(0)
    _attend_blocks[(len(blocks), kv)](
        q, keys, values, out, log_sums, *blocks.columns, _limit(window), head.scale, q.stride(0),
        keys.stride(0), queries, kv, head.group, dim, head.block, QUERY_ROWS, head.tile, _CHUNK, lse,
        num_warps=4 if dim <= 128 else 8, num_stages=3 if dim <= 64 else 2,
    )  # fmt: skip
    return out, log_sums


@dataclass(frozen=True, slots=True)
class _HeadShape:
    """The sizes that both kernels must agree on."""

    group: int
    """Query heads that share a key head."""
    block: int
    tile: int
    scale: float

    @classmethod
    def of(cls, keys: Tensor, group: int) -> _HeadShape:
        dim = keys.shape[-1]
        block = max(16, triton.next_power_of_2(dim))
        tile = max(16, min(_TILE, _TILE_BYTES // (block * keys.itemsize)))
        return cls(group, block, tile, dim**-0.5 / _LN2)


def _limit(window: int | None) -> int:
    return (1 << 30) if window is None else window
