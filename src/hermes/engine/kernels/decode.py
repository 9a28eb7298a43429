"""Triton kernels of the decode step: fewer, larger launches than torch's own operations make.

A decode step of a small model is bound by launches and by reading the cache once. So everything between two
matrix products is one kernel: rotary, head norms and the write to the cache; attention over the pool
(`attention`); and those of `rowwise`. Arithmetic is fp32, results have the tensors' dtype. Imported only
where there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hermes.engine.kernels.rowwise import head_tile, rotate_heads


@triton.jit
def _rotate_and_cache(
    qkv, q, keys, values, slot_starts, lengths, cos, sin, q_norm, k_norm, eps,
    HEADS: tl.constexpr, KV: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, KV_ROWS: tl.constexpr,
    BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    kv_index = tl.load(slot_starts + row) + length
    source = qkv + row * (HEADS + 2 * KV) * 2 * HALF
    first, second = rotate_heads(
        source, q_norm, k_norm, cos + length * HALF, sin + length * HALF, eps,
        HEADS, KV, HALF, ROWS, BLOCK, NORM,
    )  # fmt: skip
    head = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    is_query = (head < HEADS) & (cols < HALF)
    query = q + (row * HEADS + head) * 2 * HALF + cols
    tl.store(query, first.to(q.dtype.element_ty), mask=is_query)
    tl.store(query + HALF, second.to(q.dtype.element_ty), mask=is_query)
    is_key = (head >= HEADS) & (head < HEADS + KV) & (cols < HALF)
    key = keys + (kv_index * KV + head - HEADS) * 2 * HALF + cols
    tl.store(key, first.to(keys.dtype.element_ty), mask=is_key)
    tl.store(key + HALF, second.to(keys.dtype.element_ty), mask=is_key)
    kv_head = tl.arange(0, KV_ROWS)[:, None]
    inside = (kv_head < KV) & (cols < HALF)
    value = source + (HEADS + KV + kv_head) * 2 * HALF + cols
    target = values + (kv_index * KV + kv_head) * 2 * HALF + cols
    tl.store(target, tl.load(value, mask=inside).to(values.dtype.element_ty), mask=inside)
    tl.store(target + HALF, tl.load(value + HALF, mask=inside).to(values.dtype.element_ty), mask=inside)


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
    tile = head_tile(heads, kv, half)
    _rotate_and_cache[(rows,)](
        qkv, q, keys, values, slot_starts, lengths, *rope, q_norm, k_norm, eps,
        heads, kv, half, *tile.shape, norms is not None, num_warps=tile.warps,
    )  # fmt: skip
    return q


@triton.jit
def _copy(
    keys, values, copies, layer_size, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(1).to(tl.int64)
    copy = copies + 3 * tl.program_id(2)
    source, target, tokens = tl.load(copy), tl.load(copy + 1), tl.load(copy + 2)
    elements = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_slot = elements < tokens * width
    start = layer * layer_size + elements
    tl.store(
        keys + start + target * width, tl.load(keys + start + source * width, mask=in_slot), mask=in_slot
    )
    tl.store(
        values + start + target * width, tl.load(values + start + source * width, mask=in_slot), mask=in_slot
    )


def copy_slots(keys: Tensor, values: Tensor, copies: Tensor, longest: int) -> None:
    """Copies keys and values of every layer: rows of `copies` [n, 3] are the first index, the first index to
    copy to, and the number of tokens, which is at most `longest`."""
    layers, pool_tokens, kv, dim = keys.shape
    width, block = kv * dim, 4096
    grid = (triton.cdiv(longest * width, block), layers, len(copies))
    _copy[grid](keys, values, copies, pool_tokens * width, width, block, num_warps=8)
