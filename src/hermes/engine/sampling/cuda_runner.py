"""The runner for a CUDA device: a decode step is one graph, and the host is a step ahead of it.

Between two `load`s everything a step reads and writes stays on the device: tokens, lengths, seeds. The step
for a number of rows is captured once and replayed; rows are padded to the next captured number, and padding
works on cells of its own. The rows of each policy run on weights with its adapter merged in (merged.py), one
graph after the other; where some row wants top-k, top-p or alternatives, graphs end with the logits and all
rows are drawn outside. Batches of more policies than there are such copies are launched without a graph. What
was drawn comes back by an asynchronous copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from hermes.engine.attention.base import Attend
from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.kernels.decode import MOST_SHARED, attend_rows, copy_cells
from hermes.engine.kernels.sample import draw_rows
from hermes.engine.lora.policy import Policy
from hermes.engine.lora.weights import LoraView
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.sampling.cuda_fused import fused_hidden, gather_rows
from hermes.engine.sampling.merged_weights import Copy, DeviceRows, MergedCopies
from hermes.engine.sampling.prefill_attention import Prompts
from hermes.engine.sampling.runner import (
    DecodeBatch,
    PrefillChunk,
    SampledTokens,
    SampleFuture,
    SampleReady,
    SamplingMetadata,
    TorchRunner,
    pick,
)
from hermes.engine.spec import ModelSpec
from hermes.engine.types import EngineUserError

T = TypeVar("T")

_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024)
"""Numbers of rows a step is captured for; larger batches go up in steps of 256."""

PADDING_CELLS = 1
"""Cells at the end of the pool that only padding uses."""


@dataclass(frozen=True, slots=True, eq=False)
class _DrawnLater:
    """Drawn tokens on their way to the host."""

    tokens: Tensor
    logprobs: Tensor
    arrived: torch.cuda.Event

    def fetch(self) -> SampledTokens:
        self.arrived.synchronize()
        return SampledTokens(self.tokens.numpy().copy(), self.logprobs.numpy().copy(), None, None)


class CudaRunner(TorchRunner):
    depth = 1

    def __init__(self, backbone: Backbone, pool: KvPool, max_batch: int) -> None:
        super().__init__(backbone, pool)
        _check(backbone.spec)
        self._most = _size(max_batch)
        self._state = DeviceRows.empty(self._most, backbone.device)
        """Of batches that are launched without a graph."""
        self._padding_cell = pool.keys.shape[1] - PADDING_CELLS
        self._memory = torch.cuda.graph_pool_handle()
        self._copies = self._make_copies()
        self._parts: tuple[tuple[Copy, int], ...] = ()
        """The copies the running batch's rows run on, in order; none if they go without a graph."""
        self._rows = 0
        self._host = [_pinned(self._most) for _ in range(self.depth + 2)]
        self._turn = 0

    def _make_copies(self) -> MergedCopies | None:
        base = self._base
        if not isinstance(base, LlamaBackbone):
            return None
        return MergedCopies(base, self._most, lambda: torch.cuda.mem_get_info(base.device)[0])

    def merge(self, policy: Policy) -> None:
        self._copy_of(policy)

    def unmerge(self, policy: Policy) -> None:
        super().unmerge(policy)
        if self._copies is not None:
            self._copies.drop(policy)

    def _copy_of(self, policy: Policy) -> Copy | None:
        """The model as this policy has it; None if there is no room for one more."""
        running = () if self._batch is None else self._batch.choice.policies
        return None if self._copies is None else self._copies.merge(policy, [one for one, _ in running])

    def _weights(self, policies: Sequence[tuple[Policy, int]]) -> tuple[Backbone, LoraView | None]:
        if self._copies is not None and len(policies) == 1:
            copy = self._copies.of(policies[0][0])
            if copy is not None:
                return copy.backbone, None
        return super()._weights(policies)

    def _prompts_hidden(self, pieces: Sequence[PrefillChunk]) -> Tensor:
        hidden = [self._prompts_of(policy, list(some)) for policy, some in groupby(pieces, _policy)]
        return hidden[0] if len(hidden) == 1 else torch.cat(hidden)

    def _prompts_of(self, policy: Policy, pieces: Sequence[PrefillChunk]) -> Tensor:
        copy = self._copy_of(policy)
        if copy is None or self._pool.keys.dtype == torch.float32:
            return super()._prompts_hidden(pieces)
        tokens = np.concatenate([piece.tokens for piece in pieces])
        positions = np.concatenate([np.arange(len(one.tokens)) + one.offset for one in pieces])
        cells = np.repeat([piece.cell for piece in pieces], [len(piece.tokens) for piece in pieces])
        prompts = Prompts(copy.backbone.spec, self._pool, pieces)
        tokens_t, cells_t, positions_t = (self._tensor(one) for one in (tokens, cells, positions))
        return fused_hidden(copy.backbone, self._pool, tokens_t, cells_t, positions_t, prompts.gather)

    @torch.inference_mode()
    def load(self, batch: DecodeBatch) -> None:
        self._batch = batch
        self._rows = len(batch.cells)
        self._parts = self._graphed(batch.choice)
        start = 0
        for copy, rows in self._parts:
            self._fill(copy.state, batch, slice(start, start + rows))
            start += rows
        if not self._parts:
            self._fill(self._state, batch, slice(0, self._rows))
        if not self._parts or not _simple(batch.choice):
            self._choice = self._draws(batch.choice)

    def _graphed(self, choice: SamplingMetadata) -> tuple[tuple[Copy, int], ...]:
        """Each policy's copy with its rows; nothing if one has none."""
        found = [(self._copy_of(policy), rows) for policy, rows in choice.policies]
        parts = tuple((copy, rows) for copy, rows in found if copy is not None)
        return parts if len(parts) == len(found) else ()

    def _fill(self, state: DeviceRows, batch: DecodeBatch, rows: slice) -> None:
        choice, count = batch.choice, rows.stop - rows.start
        size = _size(count)
        ints = np.zeros((6, size), np.int64)
        ints[1] = self._padding_cell
        columns = (batch.tokens, batch.cells, batch.lengths, choice.seeds, choice.counts)
        for into, values in zip(ints, columns, strict=False):
            into[:count] = values[rows]
        ints[5, :count] = 1
        state.ints[:, :size].copy_(torch.from_numpy(ints))
        state.temperature[:count].copy_(torch.from_numpy(choice.temperature[rows]))

    @torch.inference_mode()
    def step(self) -> SampleFuture:
        assert self._batch is not None
        choice = self._batch.choice
        if not self._parts:
            return self._eager_step(choice)
        if not _simple(choice):
            return self._drawn_outside(choice)
        for copy, rows in self._parts:
            size = _size(rows)
            if size not in copy.graphs:
                copy.graphs[size] = self._capture(copy, size)
            copy.graphs[size].replay()
        return self._send()

    def _capture(self, copy: Copy, size: int) -> torch.cuda.CUDAGraph:
        state = copy.state
        kept = (state.ints.clone(), state.tokens.clone(), state.logprobs.clone())
        graph, _ = self._record(lambda: self._advance(copy, size))
        for into, values in zip((state.ints, state.tokens, state.logprobs), kept, strict=True):
            into.copy_(values)
        return graph

    def _record(self, work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        work()  # compiles what is not compiled yet
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Another thread may copy weights to the host meanwhile, for a checkpoint: that is not to fail.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            found = work()
        return graph, found

    def _advance(self, copy: Copy, size: int) -> None:
        """One step of the first `size` rows, on the device's own state."""
        state = copy.state
        draw_rows(
            self._next_logits(copy, size),
            state.temperature[:size],
            state.ints[:, :size],
            state.tokens[:size],
            state.logprobs[:size],
        )

    def _next_logits(self, copy: Copy, size: int) -> Tensor:
        backbone = copy.backbone
        tokens, cells, lengths = copy.state.ints[:3, :size]
        gather = gather_rows(backbone.spec, self._pool, cells, lengths)
        hidden = fused_hidden(backbone, self._pool, tokens, cells, lengths, gather)
        return linear(hidden, backbone.head_weight)

    def _drawn_outside(self, choice: SamplingMetadata) -> SampleReady:
        logits = []
        for copy, rows in self._parts:
            size = _size(rows)
            if size not in copy.logits:
                copy.logits[size] = self._record(partial(self._next_logits, copy, size))
            graph, found = copy.logits[size]
            graph.replay()
            # A copy, because the next graph may use the same memory.
            logits.append(found[:rows].to(torch.float32, copy=True))
        drawn = pick(torch.cat(logits), choice, self._choice)
        self._choice.counts.add_(1)
        start = 0
        for copy, rows in self._parts:
            copy.state.ints[0, :rows] = drawn.tokens[start : start + rows]
            copy.state.ints[2, :rows] += 1
            start += rows
        return drawn

    def _eager_step(self, choice: SamplingMetadata) -> SampleReady:
        state, rows = self._state, self._rows
        tokens, cells, lengths, _, counts, _ = state.ints[:, :rows]
        backbone, lora = self._weights(choice.policies)
        attend = self._rows_attend(cells, lengths)
        hidden = backbone.hidden(tokens, lengths, attend, lora)
        drawn = self._draw(hidden, choice, replace(self._choice, counts=counts))
        tokens.copy_(drawn.tokens)
        lengths.add_(1)
        counts.add_(1)
        return drawn

    @torch.inference_mode()
    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        if targets and tokens:
            into = (
                torch.tensor(targets, dtype=torch.int64).pin_memory().to(self._base.device, non_blocking=True)
            )
            copy_cells(self._pool.keys, self._pool.values, source, into, tokens)

    def _rows_attend(self, cells: Tensor, lengths: Tensor) -> Attend:
        pool, spec = self._pool, self._base.spec

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            pool.write(layer, cells + lengths, k, v)
            keys, values = pool.keys[layer], pool.values[layer]
            return attend_rows(q.contiguous(), keys, values, cells, lengths, spec.windows[layer])

        return attend

    def _send(self) -> _DrawnLater:
        tokens, logprobs = self._host[self._turn]
        self._turn = (self._turn + 1) % len(self._host)
        start = 0
        for copy, rows in self._parts:
            part = slice(start, start + rows)
            tokens[part].copy_(copy.state.tokens[:rows], non_blocking=True)
            logprobs[part].copy_(copy.state.logprobs[:rows], non_blocking=True)
            start += rows
        arrived = torch.cuda.current_stream().record_event()
        return _DrawnLater(tokens[: self._rows], logprobs[: self._rows], arrived)

    def _prompts_attend(self, cells: Tensor, pieces: Sequence[PrefillChunk]) -> Attend:
        if self._pool.keys.dtype == torch.float32:  # torch's variable-length kernel takes half precision only
            return super()._prompts_attend(cells, pieces)
        return Prompts(self._base.spec, self._pool, pieces).attend(cells)


def _check(spec: ModelSpec) -> None:
    """EngineUserError: our kernel, or torch's of variable length, does not take the heads of this model."""
    shared, dim = spec.heads // spec.kv_heads, spec.head_dim
    if shared > MOST_SHARED or dim % 8 or dim > 256:
        raise EngineUserError(
            f"'{spec.name}' cannot run on a GPU here: {shared} query heads of {dim} share a key head, "
            f"and it takes {MOST_SHARED} or fewer, of a multiple of 8 up to 256.",
            "Use --device cpu.",
        )


def _simple(choice: SamplingMetadata) -> bool:
    """Whether the kernel that ends a graph can draw it."""
    return not choice.topk and not choice.filtered


def _policy(piece: PrefillChunk) -> Policy:
    return piece.policy


def _size(rows: int) -> int:
    return next((size for size in _SIZES if size >= rows), -(-rows // 256) * 256)


def _pinned(rows: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, dtype=torch.int64).pin_memory(), torch.zeros(rows).pin_memory()
