"""Triton kernels of the decode step: fewer, larger launches than torch's own operations make.

A decode step of a small model is bound by launches and by reading the cache once. So what lies between two
matrix products is one kernel each: residual and norm; rotary, head norms and the write to the cache;
attention over the pool; the gated activation. Arithmetic is fp32 inside, results in the tensors' dtype.
Imported only where there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_LN2_INVERSE = 1.4426950408889634
MOST_SHARED = 16
"""The smallest tile of a matrix product: query heads that share a key head are padded to it."""
_TILE, _TILE_BYTES = 64, 16384
"""Cached tokens read at once, at most, and bytes of one key head's: they lie in shared memory."""
_PROGRAMS = 264
"""Two for each of an H200's multiprocessors; with fewer sequences, each is read in several parts."""


@triton.jit
def _add_norm(x, delta, weight, out, width, eps, BLOCK: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0)
    if ADD:
        value = value + tl.load(delta + row * width + at, mask=inside, other=0.0)
        tl.store(x + row * width + at, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    normed = (wide * scale).to(value.dtype)
    tl.store(out + row * width + at, normed * tl.load(weight + at, mask=inside, other=0.0), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """`x += delta` in place, then the root-mean-square norm of x [T, width]."""
    out = torch.empty_like(x)
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    warps = 4 if block <= 2048 else 8
    _add_norm[(rows,)](
        x, x if delta is None else delta, weight, out, width, eps, block, delta is not None, num_warps=warps
    )
    return out


@triton.jit
def _place(
    qkv, q, keys, values, cells, lengths, inv_freq, q_norm, k_norm,
    rope_scale, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < HALF
    source = qkv + row * (HEADS + 2 * KV) * 2 * HALF + head * 2 * HALF
    left = tl.load(source + at, mask=inside, other=0.0)
    right = tl.load(source + HALF + at, mask=inside, other=0.0)
    length = tl.load(lengths + row)
    cell = tl.load(cells + row) + length
    kind = left.dtype
    if head >= HEADS + KV:
        target = values + (cell * KV + head - HEADS - KV) * 2 * HALF
        tl.store(target + at, left.to(values.dtype.element_ty), mask=inside)
        tl.store(target + HALF + at, right.to(values.dtype.element_ty), mask=inside)
        return
    low, high = left.to(tl.float32), right.to(tl.float32)
    if NORM:
        weight = q_norm if head < HEADS else k_norm
        scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / (2 * HALF) + eps)
        low = (low * scale).to(kind).to(tl.float32) * tl.load(weight + at, mask=inside, other=0.0)
        high = (high * scale).to(kind).to(tl.float32) * tl.load(weight + HALF + at, mask=inside, other=0.0)
    angle = length.to(tl.float32) * tl.load(inv_freq + at, mask=inside, other=0.0)
    cos, sin = tl.cos(angle) * rope_scale, tl.sin(angle) * rope_scale
    first, second = low * cos - high * sin, high * cos + low * sin
    if head < HEADS:
        target = q + (row * HEADS + head) * 2 * HALF
        tl.store(target + at, first.to(kind), mask=inside)
        tl.store(target + HALF + at, second.to(kind), mask=inside)
    else:
        target = keys + (cell * KV + head - HEADS) * 2 * HALF
        tl.store(target + at, first.to(keys.dtype.element_ty), mask=inside)
        tl.store(target + HALF + at, second.to(keys.dtype.element_ty), mask=inside)


def place(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    cells: Tensor,
    lengths: Tensor,
    inv_freq: Tensor,
    rope_scale: float,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """Rotates the rows' queries and keys, one token each at position `lengths`, and caches keys and values.

    From qkv [rows, (heads + 2 kv) * D] the queries [rows, heads, D]; the pool is one layer, [cells, kv, D].
    """
    rows, (kv, dim) = qkv.shape[0], keys.shape[1:]
    heads = qkv.shape[1] // dim - 2 * kv
    q = torch.empty(rows, heads, dim, device=qkv.device, dtype=qkv.dtype)
    q_norm, k_norm = norms or (inv_freq, inv_freq)
    half = dim // 2
    _place[(rows, heads + 2 * kv)](
        qkv, q, keys, values, cells, lengths, inv_freq, q_norm, k_norm, rope_scale, eps,
        heads, kv, half, triton.next_power_of_2(half), norms is not None, num_warps=1,
    )  # fmt: skip
    return q


@triton.jit
def _attend(
    q, keys, values, out, peaks, sums, cells, lengths, window, scale,
    KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, PARTS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    part = tl.program_id(2)
    seen = tl.load(lengths + row) + 1
    begin = tl.maximum(seen - window, 0)
    share = tl.cdiv(seen - begin, PARTS)
    start = begin + part * share
    stop = tl.minimum(start + share, seen)
    at = tl.arange(0, BLOCK)
    member = tl.arange(0, ROWS)
    real = (member < GROUP)[:, None] if BLOCK == DIM else (member < GROUP)[:, None] & (at < DIM)[None, :]
    spot = ((row * KV + head) * GROUP + member) * DIM
    query = tl.load(q + spot[:, None] + at[None, :], mask=real, other=0.0)
    query = query.to(keys.dtype.element_ty)
    base = (tl.load(cells + row) * KV + head) * DIM
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    gathered = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(start, stop, TILE):
        token = first + tl.arange(0, TILE)
        inside = token < stop
        held = inside[:, None] if BLOCK == DIM else inside[:, None] & (at < DIM)[None, :]
        where = base + token.to(tl.int64) * (KV * DIM)
        key = tl.load(keys + where[:, None] + at[None, :], mask=held, other=0.0)
        if EXACT:
            score = tl.dot(query, tl.trans(key), input_precision="ieee")
        else:
            score = tl.dot(query, tl.trans(key))
        score = tl.where(inside[None, :], score * scale, -float("inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        fade = tl.exp2(peak - higher)
        value = tl.load(values + where[:, None] + at[None, :], mask=held, other=0.0)
        if EXACT:
            gained = tl.dot(weight, value, input_precision="ieee")
        else:
            gained = tl.dot(weight.to(value.dtype), value)
        gathered = gathered * fade[:, None] + gained
        total = total * fade + tl.sum(weight, 1)
        peak = higher
    if PARTS == 1:
        done = gathered / total[:, None]
        tl.store(out + spot[:, None] + at[None, :], done.to(out.dtype.element_ty), mask=real)
    else:
        place = ((row * KV + head) * PARTS + part) * GROUP + member
        tl.store(out + place[:, None] * DIM + at[None, :], gathered, mask=real)
        tl.store(peaks + place, peak, mask=member < GROUP)
        tl.store(sums + place, total, mask=member < GROUP)


@triton.jit
def _join(
    pieces, peaks, sums, out,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    member = tl.program_id(1)
    part = tl.arange(0, MOST)
    at = tl.arange(0, BLOCK)
    inside = part < PARTS
    spot = (pair * PARTS + part) * GROUP + member
    peak = tl.load(peaks + spot, mask=inside, other=-float("inf"))
    highest = tl.max(peak, 0)
    weight = tl.exp2(peak - highest)
    total = tl.sum(weight * tl.load(sums + spot, mask=inside, other=0.0), 0)
    real = inside[:, None] & (at < DIM)[None, :]
    piece = tl.load(pieces + spot[:, None] * DIM + at[None, :], mask=real, other=0.0)
    done = tl.sum(piece * weight[:, None], 0) / total
    tl.store(out + (pair * GROUP + member) * DIM + at, done.to(out.dtype.element_ty), mask=at < DIM)


def attend_rows(
    q: Tensor, keys: Tensor, values: Tensor, cells: Tensor, lengths: Tensor, window: int | None
) -> Tensor:
    """One query a row over its slot: q [rows, heads, D] against tokens 0 … lengths of the slot at `cells`.

    A row of a short batch is read in several parts by several programs, which are then joined.
    """
    rows, heads, dim = q.shape
    kv = keys.shape[1]
    group = heads // kv
    block = max(16, triton.next_power_of_2(dim))
    tile = max(16, min(_TILE, _TILE_BYTES // (block * keys.itemsize)))
    parts = max(1, min(16, _PROGRAMS // (rows * kv)))
    exact = keys.dtype == torch.float32
    out = torch.empty_like(q)
    if parts == 1:
        target, peaks, sums = out, out, out
    else:
        target = torch.empty(rows * kv * parts * group, dim, device=q.device, dtype=torch.float32)
        peaks, sums = torch.empty(2, rows * kv * parts * group, device=q.device, dtype=torch.float32)
    _attend[(rows, kv, parts)](
        q, keys, values, target, peaks, sums, cells, lengths,
        (1 << 30) if window is None else window, dim**-0.5 * _LN2_INVERSE,
        kv, group, dim, block, MOST_SHARED, tile, parts, exact, num_warps=4 if dim > 64 else 2, num_stages=3,
    )  # fmt: skip
    if parts > 1:
        _join[(rows * kv, group)](
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
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tokens * width
    start = layer * layer_size + at
    tl.store(keys + start + target * width, tl.load(keys + start + source * width, mask=inside), mask=inside)
    tl.store(
        values + start + target * width, tl.load(values + start + source * width, mask=inside), mask=inside
    )


def copy_cells(keys: Tensor, values: Tensor, source: int, targets: Tensor, tokens: int) -> None:
    """The cells from `source` on, `tokens` of them, of every layer to each of `targets` [n]."""
    layers, cells, kv, dim = keys.shape
    width, block = kv * dim, 4096
    grid = (triton.cdiv(tokens * width, block), layers, len(targets))
    _copy[grid](
        keys, values, source, targets, tokens, cells * width, width, block, num_warps=8
    )  # fmt: skip


@triton.jit
def _gate(gate_up, out, out_stride, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    opened = (wide * tl.sigmoid(wide)).to(gate.dtype).to(tl.float32)
    tl.store(out + row * out_stride + at, (opened * up.to(tl.float32)).to(gate.dtype), mask=inside)


def gate(gate_up: Tensor, room: int = 0) -> Tensor:
    """silu(left half) * right half of [rows, 2 * width], in a matrix that has `room` behind these columns."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width + room)
    block = min(1024, triton.next_power_of_2(width))
    _gate[(rows, triton.cdiv(width, block))](gate_up, out, width + room, width, block, num_warps=4)
    return out
