"""Attention over the pool of keys and values, for prefill and decode on a CPU.

The cost of a decode step is calls and memory traffic. Adjacent slots of one size are one strided view of the
pool, so a run of them takes one call, without a copy; the query heads that share a key head are that call's
query positions. A layer's sliding window is applied as a mask.

Rollouts of one environment share a prefix: system prompt, tools, often the whole prompt. The shared prefix is
read once for all rows and each row's remaining tokens separately; the two outputs are combined by their
log-sum-exp.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention

from hermes.engine.attention.base import Attend
from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.spec import ModelSpec
from hermes.engine.types import Ints

MIN_SHARED_ROWS, MIN_SHARED_TOKENS = 4, 64
"""A prefix shared by fewer rows, or of fewer tokens, is not worth a separate call."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Consecutive rows of the batch whose sequences start with the same tokens under the same weights."""

    first: int
    last: int
    """The row after the last one."""
    kv_index: int
    """Where the prefix is in the pool: at the start of the first row's slot."""
    tokens: int
    """Length of the prefix; 0 where the rows share too little to be worth a separate call."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotRun:
    """Consecutive rows of one `SharedPrefix` whose slots are adjacent in the pool and of one size."""

    first: int
    last: int
    prefix: SharedPrefix
    """Its tokens are read separately, not as part of the run."""
    keys: Tensor
    """[layers, rows, kv_heads, slot, head_dim], a view of the pool."""
    values: Tensor


def shared_prefixes(
    spec: ModelSpec, rows_per_policy: Sequence[int], slot_starts: Ints, prompts: Sequence[Ints]
) -> tuple[SharedPrefix, ...]:
    """Partitions the batch's rows, in order, by their common prefix. Rows of two policies never share one."""
    full_attention = all(window is None for window in spec.windows)
    ends = np.cumsum(rows_per_policy).tolist()
    prefixes: list[SharedPrefix] = []
    for first, last in zip([0, *ends], ends, strict=False):
        while first < last:
            rows, common = _leading_group(prompts[first:last])
            tokens = common if full_attention and rows >= MIN_SHARED_ROWS else 0
            if not tokens and prefixes and not prefixes[-1].tokens:  # unrelated neighbours form one group
                prefixes[-1] = replace(prefixes[-1], last=first + rows)
            else:
                prefixes.append(SharedPrefix(first, first + rows, int(slot_starts[first]), tokens))
            first += rows
    return tuple(prefixes)


def _leading_group(prompts: Sequence[Ints]) -> tuple[int, int]:
    """How many prompts, counted from the first, share a prefix, and the length of that prefix."""
    tokens = len(prompts[0])
    for index, prompt in enumerate(prompts):
        common = min(tokens, len(prompt))
        different = np.flatnonzero(prompt[:common] != prompts[0][:common])
        common = int(different[0]) if len(different) else common
        if common < MIN_SHARED_TOKENS and index:
            return index, tokens
        tokens = common
    return len(prompts), tokens if tokens >= MIN_SHARED_TOKENS else 0


def slot_runs(
    slot_starts: Ints, slot_sizes: Ints, prefixes: Sequence[SharedPrefix], pool: KvPool
) -> tuple[SlotRun, ...]:
    """Partitions the batch's rows, in order, into as few runs as possible."""
    breaks = np.flatnonzero((np.diff(slot_starts) != slot_sizes[:-1]) | (np.diff(slot_sizes) != 0)) + 1
    runs = []
    for prefix in prefixes:
        inside = breaks[(breaks > prefix.first) & (breaks < prefix.last)].tolist()
        for first, last in itertools.pairwise([prefix.first, *inside, prefix.last]):
            start, size = int(slot_starts[first]), int(slot_sizes[first])
            keys, values = (_slot_view(part, start, last - first, size) for part in (pool.keys, pool.values))
            runs.append(SlotRun(first, last, prefix, keys, values))
    return tuple(runs)


def _slot_view(part: Tensor, start: int, count: int, size: int) -> Tensor:
    """[layers, count, kv_heads, size, head_dim]: `count` adjacent slots of one half of the pool."""
    layers, _, heads, dim = part.shape
    return part[:, start : start + count * size].view(layers, count, size, heads, dim).transpose(2, 3)


def decode_attend(
    spec: ModelSpec, pool: KvPool, kv_indices: Tensor, runs: Sequence[SlotRun], lengths: Ints
) -> Attend:
    """Attention of one token per row.

    The key and value of row r are stored at kv_indices[r], and it attends to lengths[r] + 1 tokens.
    """
    suffix_lengths = [lengths[run.first : run.last] - run.prefix.tokens for run in runs]
    masks = {
        window: [_decode_mask(suffixes, window, pool) for suffixes in suffix_lengths]
        for window in set(spec.windows)
    }
    suffix_ranges = [
        slice(run.prefix.tokens, run.prefix.tokens + int(suffixes.max()) + 1)
        for run, suffixes in zip(runs, suffix_lengths, strict=True)
    ]
    prefixes = {run.prefix.first: run.prefix for run in runs if run.prefix.tokens}
    # The queries of one key head are positions: the same sum as with each a head, and up to twice as fast.
    grouped = (len(lengths), spec.kv_heads, spec.heads // spec.kv_heads, spec.head_dim)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool.write(layer, kv_indices, k, v)
        queries = q.reshape(grouped)
        out = torch.empty(grouped, dtype=q.dtype, device=q.device)
        prefix_outputs = {
            first: _prefix_attention(pool, layer, prefix, q, grouped) for first, prefix in prefixes.items()
        }
        for run, suffix, mask in zip(runs, suffix_ranges, masks[spec.windows[layer]], strict=True):
            rows = slice(run.first, run.last)
            keys, values = run.keys[layer, :, :, suffix], run.values[layer, :, :, suffix]
            suffix_out, suffix_lse = _flash(queries[rows], keys, values, attn_mask=mask)
            if not run.prefix.tokens:
                out[rows] = suffix_out
                continue
            in_prefix = slice(run.first - run.prefix.first, run.last - run.prefix.first)
            prefix_out, prefix_lse = (tensor[in_prefix] for tensor in prefix_outputs[run.prefix.first])
            prefix_weight = torch.sigmoid(prefix_lse - suffix_lse)[..., None]
            torch.lerp(suffix_out, prefix_out, prefix_weight.to(out.dtype), out=out[rows])
        return out.view(q.shape)

    return attend


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""The kernel that `scaled_dot_product_attention` calls on a CPU; it returns the scores' log-sum-exp too."""


def _prefix_attention(
    pool: KvPool, layer: int, prefix: SharedPrefix, q: Tensor, grouped: tuple[int, int, int, int]
) -> tuple[Tensor, Tensor]:
    """Attention output of the rows' queries over their shared prefix, and its log-sum-exp."""
    indices = slice(prefix.kv_index, prefix.kv_index + prefix.tokens)
    queries = _heads_first(q[prefix.first : prefix.last])
    keys, values = _heads_first(pool.keys[layer, indices]), _heads_first(pool.values[layer, indices])
    out, lse = _flash(queries, keys, values)
    shape = (-1, *grouped[1:])
    return out[0].transpose(0, 1).view(shape), lse.view(q.shape[1], -1).t().unflatten(1, grouped[1:3])


def prefill_attend(
    spec: ModelSpec, pool: KvPool, kv_indices: Tensor, chunks: Sequence[tuple[int, int, int]]
) -> Attend:
    """Attention of packed chunks (slot start, offset, size): each attends to its own slot, causally."""
    windows = set(spec.windows)
    masks = {
        window: [_prefill_mask(offset, size, window, pool) for _, offset, size in chunks]
        for window in windows
    }

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool.write(layer, kv_indices, k, v)
        outs, start = [], 0
        for (slot_start, offset, size), mask in zip(chunks, masks[spec.windows[layer]], strict=True):
            rows = slice(start, start + size)
            start += size
            if offset == 0:
                keys, values = k[rows], v[rows]
            else:
                cached = slice(slot_start, slot_start + offset + size)
                keys, values = pool.keys[layer, cached], pool.values[layer, cached]
            out = attention(
                _heads_first(q[rows]),
                _heads_first(keys),
                _heads_first(values),
                attn_mask=mask,
                is_causal=mask is None and size > 1,
                enable_gqa=spec.heads != spec.kv_heads,
            )
            outs.append(out[0].transpose(0, 1))
        return torch.cat(outs)

    return attend


def _heads_first(packed: Tensor) -> Tensor:
    """[T, heads, D] as [1, heads, T, D]."""
    return packed.transpose(0, 1)[None]


def _decode_mask(lengths: Ints, window: int | None, pool: KvPool) -> Tensor | None:
    """[rows, 1, 1, longest + 1] to add to the scores; None where every row attends to all of it."""
    longest = int(lengths.max())
    if int(lengths.min()) == longest and (window is None or longest < window):
        return None
    key, query = np.arange(longest + 1), lengths[:, None]
    visible = key <= query if window is None else (key <= query) & (key > query - window)
    return _additive_mask(visible, pool)[:, None, None]


def _prefill_mask(offset: int, size: int, window: int | None, pool: KvPool) -> Tensor | None:
    """[size, offset + size] to add to the scores; None where plain causal attention, or none, is correct."""
    fits_window = window is None or offset + size <= window
    if fits_window and (offset == 0 or size == 1):
        return None
    key, query = np.arange(offset + size), (np.arange(size) + offset)[:, None]
    visible = key <= query if window is None else (key <= query) & (key > query - window)
    return _additive_mask(visible, pool)


def _additive_mask(visible: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], pool: KvPool) -> Tensor:
    mask = torch.from_numpy(visible).to(pool.keys.device)
    return torch.zeros(mask.shape, device=mask.device, dtype=pool.keys.dtype).masked_fill_(
        ~mask, float("-inf")
    )
