"""Attention over the pool of keys and values: what prompts and running sequences attend to.

On a CPU the cost of a decode step is calls and memory traffic. Slots of one size that lie side by side are
one strided view of the pool, so a run of them is one call, without a copy; the query heads that share a key
head are that call's query positions. Windows of a layer are honoured by masks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention

from hermes.engine.backbone import Attend
from hermes.engine.kv import KvPool
from hermes.engine.spec import ModelSpec
from hermes.engine.types import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Rows of the batch whose slots lie side by side."""

    first: int
    last: int
    keys: Tensor
    """[layers, rows, kv_heads, slot, head_dim], a view of the pool."""
    values: Tensor


def runs_of(cells: Ints, sizes: Ints, pool: KvPool) -> tuple[Run, ...]:
    """The batch's rows as few runs, in their order."""
    breaks = np.flatnonzero((np.diff(cells) != sizes[:-1]) | (np.diff(sizes) != 0)) + 1
    edges = [0, *breaks.tolist(), len(cells)]
    runs = []
    for first, last in itertools.pairwise(edges):
        start, size = int(cells[first]), int(sizes[first])
        keys, values = (_slots(part, start, last - first, size) for part in (pool.keys, pool.values))
        runs.append(Run(first, last, keys, values))
    return tuple(runs)


def _slots(part: Tensor, start: int, count: int, size: int) -> Tensor:
    layers, _, heads, dim = part.shape
    return part[:, start : start + count * size].view(layers, count, size, heads, dim).transpose(2, 3)


def rows_attend(spec: ModelSpec, pool: KvPool, cells: Tensor, runs: Sequence[Run], lengths: Ints) -> Attend:
    """One token a row: row r's keys and values go to cells[r], and it attends to lengths[r] + 1 tokens."""
    windows = set(spec.windows)
    longest = [int(lengths[run.first : run.last].max()) + 1 for run in runs]
    masks = {
        window: [_row_mask(lengths[run.first : run.last], window, pool) for run in runs] for window in windows
    }
    grouped = _query_shape(spec, pool)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool.write(layer, cells, k, v)
        queries = q.reshape(grouped)
        outs = [
            attention(
                queries[run.first : run.last],
                run.keys[layer, :, :, :length],
                run.values[layer, :, :, :length],
                attn_mask=mask,
                enable_gqa=grouped[2] == 1,
            )
            for run, length, mask in zip(runs, longest, masks[spec.windows[layer]], strict=True)
        ]
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        return out.reshape(q.shape)

    return attend


def _query_shape(spec: ModelSpec, pool: KvPool) -> tuple[int, int, int, int]:
    """How one token's queries are handed over: the heads of one key head as positions, or as heads.

    Both are the same sum; the first is the faster one in fp32, the second in bf16.
    """
    if pool.keys.dtype == torch.float32:
        return (-1, spec.kv_heads, spec.heads // spec.kv_heads, spec.head_dim)
    return (-1, spec.heads, 1, spec.head_dim)


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
