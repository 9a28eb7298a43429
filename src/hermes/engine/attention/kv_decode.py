"""Attention over the pool of keys and values: what prompts and running sequences attend to.

On a CPU the cost of a decode step is calls and memory traffic. Slots of one size that lie side by side are
one strided view of the pool, so a run of them is one call, without a copy; the query heads that share a key
head are that call's query positions. Windows of a layer are honoured by masks.

Rollouts of one environment begin alike: system prompt, tools, often the whole prompt. Reading that beginning
once for all of them, and each one's own rest for itself, is most of what attention costs here; the two are
joined by their log-sum-exp.
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

STEM_ROWS, STEM_TOKENS = 4, 64
"""A common beginning of fewer rows or tokens is not worth a call of its own."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Rows of the batch whose sequences begin with the same tokens, under the same weights; with 0 tokens:
    rows that have nothing in common."""

    first: int
    last: int
    cell: int
    """Where the beginning lies: in the slot of the first of them."""
    tokens: int
    """How many are the same; 0: too few, or of too few rows, to be worth it."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotRun:
    """Rows of the batch, of one stem, whose slots lie side by side."""

    first: int
    last: int
    stem: SharedPrefix
    """Whose tokens are not read here."""
    keys: Tensor
    """[layers, rows, kv_heads, slot, head_dim], a view of the pool."""
    values: Tensor


def stems_of(
    spec: ModelSpec, policies: Sequence[int], cells: Ints, prompts: Sequence[Ints]
) -> tuple[SharedPrefix, ...]:
    """The batch's rows by how they begin, in their order; `policies`: how many rows each has, in order."""
    plain = all(window is None for window in spec.windows)
    ends = np.cumsum(policies).tolist()
    stems: list[SharedPrefix] = []
    for first, last in zip([0, *ends], ends, strict=False):
        while first < last:
            count, common = _alike(prompts[first:last])
            tokens = common if plain and count >= STEM_ROWS else 0
            if not tokens and stems and not stems[-1].tokens:  # neighbours with nothing in common go together
                stems[-1] = replace(stems[-1], last=first + count)
            else:
                stems.append(SharedPrefix(first, first + count, int(cells[first]), tokens))
            first += count
    return tuple(stems)


def _alike(prompts: Sequence[Ints]) -> tuple[int, int]:
    """How many of the prompts from the first on begin alike, and how far."""
    tokens = len(prompts[0])
    for index, prompt in enumerate(prompts):
        common = min(tokens, len(prompt))
        different = np.flatnonzero(prompt[:common] != prompts[0][:common])
        common = int(different[0]) if len(different) else common
        if common < STEM_TOKENS and index:
            return index, tokens
        tokens = common
    return len(prompts), tokens if tokens >= STEM_TOKENS else 0


def runs_of(cells: Ints, sizes: Ints, stems: Sequence[SharedPrefix], pool: KvPool) -> tuple[SlotRun, ...]:
    """The batch's rows as few runs, in their order."""
    breaks = np.flatnonzero((np.diff(cells) != sizes[:-1]) | (np.diff(sizes) != 0)) + 1
    runs = []
    for stem in stems:
        inside = breaks[(breaks > stem.first) & (breaks < stem.last)].tolist()
        for first, last in itertools.pairwise([stem.first, *inside, stem.last]):
            start, size = int(cells[first]), int(sizes[first])
            keys, values = (_slots(part, start, last - first, size) for part in (pool.keys, pool.values))
            runs.append(SlotRun(first, last, stem, keys, values))
    return tuple(runs)


def _slots(part: Tensor, start: int, count: int, size: int) -> Tensor:
    layers, _, heads, dim = part.shape
    return part[:, start : start + count * size].view(layers, count, size, heads, dim).transpose(2, 3)


def rows_attend(
    spec: ModelSpec, pool: KvPool, cells: Tensor, runs: Sequence[SlotRun], lengths: Ints
) -> Attend:
    """One token a row: row r's keys and values go to cells[r], and it attends to lengths[r] + 1 tokens."""
    own = [lengths[run.first : run.last] - run.stem.tokens for run in runs]
    masks = {window: [_row_mask(one, window, pool) for one in own] for window in set(spec.windows)}
    seen = [
        slice(run.stem.tokens, run.stem.tokens + int(one.max()) + 1)
        for run, one in zip(runs, own, strict=True)
    ]
    stems = {run.stem.first: run.stem for run in runs if run.stem.tokens}
    # The queries of one key head are positions: the same sum as with each a head, and up to twice as fast.
    grouped = (len(lengths), spec.kv_heads, spec.heads // spec.kv_heads, spec.head_dim)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool.write(layer, cells, k, v)
        queries = q.reshape(grouped)
        out = torch.empty(grouped, dtype=q.dtype, device=q.device)
        begun = {first: _stem_attend(pool, layer, stem, q, grouped) for first, stem in stems.items()}
        for run, part, mask in zip(runs, seen, masks[spec.windows[layer]], strict=True):
            rows = slice(run.first, run.last)
            keys, values = run.keys[layer, :, :, part], run.values[layer, :, :, part]
            rest, lse = _flash(queries[rows], keys, values, attn_mask=mask)
            if not run.stem.tokens:
                out[rows] = rest
                continue
            there = slice(run.first - run.stem.first, run.last - run.stem.first)
            first, first_lse = (one[there] for one in begun[run.stem.first])
            share = torch.sigmoid(first_lse - lse)[..., None]
            torch.lerp(rest, first, share.to(out.dtype), out=out[rows])
        return out.view(q.shape)

    return attend


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""What `scaled_dot_product_attention` calls on a CPU; this also tells the log-sum-exp of the scores."""


def _stem_attend(
    pool: KvPool, layer: int, stem: SharedPrefix, q: Tensor, grouped: tuple[int, int, int, int]
) -> tuple[Tensor, Tensor]:
    """What the rows' queries see in their common beginning, and its log-sum-exp."""
    there = slice(stem.cell, stem.cell + stem.tokens)
    asked = _headed(q[stem.first : stem.last])
    out, lse = _flash(asked, _headed(pool.keys[layer, there]), _headed(pool.values[layer, there]))
    shape = (-1, *grouped[1:])
    return out[0].transpose(0, 1).view(shape), lse.view(q.shape[1], -1).t().unflatten(1, grouped[1:3])


def prompts_attend(
    spec: ModelSpec, pool: KvPool, cells: Tensor, pieces: Sequence[tuple[int, int, int]]
) -> Attend:
    """Pieces (first cell of the slot, offset, size) packed: each attends to its own slot, causally."""
    windows = set(spec.windows)
    masks = {
        window: [_prompt_mask(offset, size, window, pool) for _, offset, size in pieces] for window in windows
    }

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool.write(layer, cells, k, v)
        outs, start = [], 0
        for (cell, offset, size), mask in zip(pieces, masks[spec.windows[layer]], strict=True):
            mine = slice(start, start + size)
            start += size
            if offset == 0:
                query, keys, values = q[mine], k[mine], v[mine]
            else:
                query = q[mine]
                keys, values = (part[layer, cell : cell + offset + size] for part in (pool.keys, pool.values))
            out = attention(
                _headed(query),
                _headed(keys),
                _headed(values),
                attn_mask=mask,
                is_causal=mask is None and size > 1,
                enable_gqa=spec.heads != spec.kv_heads,
            )
            outs.append(out[0].transpose(0, 1))
        return torch.cat(outs)

    return attend


def _headed(packed: Tensor) -> Tensor:
    """[T, heads, D] as [1, heads, T, D]."""
    return packed.transpose(0, 1)[None]


def _row_mask(lengths: Ints, window: int | None, pool: KvPool) -> Tensor | None:
    """[rows, 1, 1, longest + 1] to add to the scores; None where every row sees everything."""
    longest = int(lengths.max())
    if int(lengths.min()) == longest and (window is None or longest < window):
        return None
    at, last = np.arange(longest + 1), lengths[:, None]
    seen = at <= last if window is None else (at <= last) & (at > last - window)
    return _added(seen, pool)[:, None, None]


def _prompt_mask(offset: int, size: int, window: int | None, pool: KvPool) -> Tensor | None:
    """[size, offset + size] to add to the scores; None where plain causal is right, or all is seen."""
    short = window is None or offset + size <= window
    if short and (offset == 0 or size == 1):
        return None
    at, row = np.arange(offset + size), (np.arange(size) + offset)[:, None]
    seen = at <= row if window is None else (at <= row) & (at > row - window)
    return _added(seen, pool)


def _added(seen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], pool: KvPool) -> Tensor:
    mask = torch.from_numpy(seen).to(pool.keys.device)
    return torch.zeros(mask.shape, device=mask.device, dtype=pool.keys.dtype).masked_fill_(
        ~mask, float("-inf")
    )
