"""The runner for a CUDA device: a decode step is one CUDA graph, and the host is a step ahead of it.

Between two `load`s everything a step reads and writes stays on the device: tokens, lengths, seeds, and which
adapter each row has (`lora.adapter_table`). The step for a number of rows is captured once and replayed,
whatever policies the rows have; rows are padded to the next captured number, and padding rows write to an
index of the pool that no sequence uses. If some row uses top-k, top-p or alternatives, the graph ends with
the logits and the rows are sampled outside of it. A prefill of few tokens is a captured step too, with a row
for each token. Models that run through transformers have no graph. Sampled tokens reach the host by an
asynchronous copy; copies from slot to slot are collected and made in one launch before the slots are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.kv_cache import KvPool, KvSlot, SlotCopy
from hermes.engine.kernels.attention import MAX_HEADS_PER_KV, attend_rows
from hermes.engine.kernels.decode import copy_slots
from hermes.engine.kernels.sample import sample_rows
from hermes.engine.lora.adapter_table import DECODE_TILE_ROWS, AdapterRows, PolicySlots, row_tiles
from hermes.engine.lora.weights import Policy
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.products import lora_linear, wide_linear
from hermes.engine.sampling.cuda_fused import PrefillAttention, decode_attention, fused_hidden
from hermes.engine.sampling.device_rows import DeviceRows
from hermes.engine.sampling.runner import (
    DecodeBatch,
    PrefillChunk,
    SampledTokens,
    SampleFuture,
    SampleReady,
    SamplingMetadata,
    TorchRunner,
    combine_policies,
    sample_logits,
)
from hermes.engine.spec import HEAD, ModelSpec
from hermes.engine.types import EngineUserError, Ints

T = TypeVar("T")

_GRAPH_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024)
"""Numbers of rows a step is captured for; above them, multiples of 256."""

_GRAPHED_PREFILL_TOKENS = 64
"""A prefill of more tokens is not captured: its kernels take longer than their launches, and a row for each
token would read the tokens before it once for each."""

PADDING_KV_TOKENS = 1
"""Indices at the end of the pool that only padding rows write to."""


class _GraphKey(NamedTuple):
    rows: int
    tiles: int
    """Tiles of rows with one adapter; 0 if no row has an adapter."""
    rank: int
    """The rank of the buffers between the two products of an adapter."""


@dataclass(frozen=True, slots=True, eq=False)
class _AsyncSample:
    """Sampled tokens that are being copied to the host."""

    tokens: Tensor
    logprobs: Tensor
    copied: torch.cuda.Event

    def fetch(self) -> SampledTokens:
        self.copied.synchronize()
        return SampledTokens(self.tokens.numpy().copy(), self.logprobs.numpy().copy(), None, None)


class CudaRunner(TorchRunner):
    depth = 1

    def __init__(
        self, backbone: Backbone, pool: KvPool, max_batch: int, spec: ModelSpec | None = None
    ) -> None:
        super().__init__(backbone, pool, spec)
        _check_heads(backbone.spec)
        max_rows = _padded_rows(max_batch)
        device = backbone.device
        self._llama = backbone if isinstance(backbone, LlamaBackbone) else None
        """The backbone, where its steps are captured."""
        self._invariant = self._llama is not None and self._llama.batch_invariant
        self._state = DeviceRows.empty(max_rows, device)
        self._prompt_rows = torch.zeros(3, _GRAPHED_PREFILL_TOKENS, dtype=torch.int64, device=device)
        """Tokens, slot starts and positions of a captured prefill."""
        self._slots = PolicySlots(backbone.spec, device, 2 * max_rows)
        """For every running row a policy of its own, and as many in prefill."""
        self._tiles = torch.zeros(_padded_tiles(max_rows), 3, dtype=torch.int32, device=device)
        self._prompt_tiles = torch.zeros_like(self._tiles[: _padded_tiles(_GRAPHED_PREFILL_TOKENS)])
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lora: AdapterRows | None = None
        """The adapters of the running batch; None if it has only rows of the base model."""
        self._padding_index = pool.keys.shape[1] - PADDING_KV_TOKENS
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[_GraphKey, torch.cuda.CUDAGraph] = {}
        """Decode steps."""
        self._logit_graphs: dict[_GraphKey, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        """Decode steps up to their logits [rows, vocab], which are the tensor."""
        self._prefill_graphs: dict[_GraphKey, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        """Prefills of few tokens up to their final hidden states [rows, hidden]."""
        self._copies: list[SlotCopy] = []
        """Not launched yet; none reads or writes what another writes."""
        # A row that has ended may run on for the steps that are in flight.
        self._longest = min(backbone.spec.max_length, pool.keys.shape[1]) + self.depth + 1
        """Tokens that a row may have."""
        self._rope = self._rope_table()
        self._rows = 0
        self._host_buffers = [_pinned(max_rows) for _ in range(self.depth + 2)]
        self._next_buffer = 0

    @torch.inference_mode()
    def _rope_table(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of every position, [positions, head_dim / 2], rounded as in training."""
        if self._llama is None:
            return torch.empty(0), torch.empty(0)
        cos, sin = self._llama.rotary(torch.arange(self._longest, device=self._llama.device))
        return cos[:, 0].contiguous(), sin[:, 0].contiguous()

    def merge(self, policy: Policy) -> None:
        """Nothing is merged: a policy has the same arithmetic alone, among others and in training."""

    def unmerge(self, policy: Policy) -> None:
        super().unmerge(policy)
        self._slots.drop(policy)

    def _policy_spans(self, policies: Sequence[tuple[Policy, int]]) -> list[tuple[int, int]]:
        """The slot and the number of rows of each policy."""
        running = {policy for policy, _ in policies}
        if self._batch is not None:
            running |= {policy for policy, _ in self._batch.sampling.policies}
        return [(self._slots.slot(policy, running), rows) for policy, rows in policies]

    def _adapters(self, policies: Sequence[tuple[Policy, int]]) -> AdapterRows | None:
        if all(policy.applied is None for policy, _ in policies):
            return None
        return AdapterRows.for_spans(self._slots.table, self._policy_spans(policies))

    def _prefill_hidden(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        if self._llama is None or self._pool.keys.dtype == torch.float32:
            return super()._prefill_hidden(chunks)
        lengths = [len(chunk.tokens) for chunk in chunks]
        columns = (
            np.concatenate([chunk.tokens for chunk in chunks]),
            np.repeat([chunk.slot_start for chunk in chunks], lengths),
            np.concatenate([np.arange(len(chunk.tokens)) + chunk.offset for chunk in chunks]),
        )
        policies = combine_policies((chunk.policy, len(chunk.tokens)) for chunk in chunks)
        if sum(lengths) <= _GRAPHED_PREFILL_TOKENS:
            return self._graphed_prefill(self._llama, np.stack(columns), policies)
        tokens, slot_starts, positions = (self._tensor(column) for column in columns)
        attention = PrefillAttention(self._llama.spec, self._pool, chunks).from_pool
        lora = self._adapters(policies)
        return fused_hidden(
            self._llama, self._pool, tokens, slot_starts, positions, self._rope, attention, lora
        )

    def _graphed_prefill(
        self, backbone: LlamaBackbone, columns: Ints, policies: Sequence[tuple[Policy, int]]
    ) -> Tensor:
        """The final hidden states of the tokens, each as a row of a decode step at its position.

        A layer stores the keys and values of all rows before any row attends, so a token sees those before
        it. `columns`: tokens, slot starts and positions [3, tokens].
        """
        count = columns.shape[1]
        rows = _padded_rows(count)
        padding = np.array([[0], [self._padding_index], [0]]).repeat(rows - count, axis=1)
        self._prompt_rows[:, :rows].copy_(torch.from_numpy(np.concatenate((columns, padding), axis=1)))
        lora = self._tiled_adapters(policies, rows - count, self._prompt_tiles)
        key = _graph_key(rows, lora)
        if key not in self._prefill_graphs:
            tokens, slot_starts, positions = self._prompt_rows[:, :rows].unbind()
            self._prefill_graphs[key] = self._capture(
                lambda: self._rows_hidden(backbone, tokens, slot_starts, positions, lora)
            )
        graph, hidden = self._prefill_graphs[key]
        graph.replay()
        return hidden[:count]

    @torch.inference_mode()
    def sample(self, hidden: Tensor, sampling: SamplingMetadata) -> SampleReady:
        if self._llama is None or not _kernel_samples(sampling):
            return super().sample(hidden, sampling)
        # The kernel that ends a decode step, so that a first token's logprob has the same bits as a later's.
        rows = DeviceRows.empty(len(hidden), hidden.device)
        rows.seeds.copy_(self._tensor(sampling.seeds))
        rows.counts.copy_(self._tensor(sampling.counts))
        rows.temperature.copy_(self._tensor(sampling.temperature))
        sample_into(rows, self._logits(sampling.policies, hidden))
        return SampleReady(rows.sampled_tokens, rows.sampled_logprobs, None)

    def _logits(self, policies: Sequence[tuple[Policy, int]], hidden: Tensor) -> Tensor:
        if self._llama is None:
            return super()._logits(policies, hidden)
        return self._head_logits(self._llama, hidden, self._adapters(policies))

    def _head_logits(self, backbone: LlamaBackbone, hidden: Tensor, lora: AdapterRows | None) -> Tensor:
        if lora is None:
            return wide_linear(hidden, backbone.head_weight, invariant=self._invariant)
        weight = backbone.head_weight
        return lora_linear(
            hidden, weight, None, lora, HEAD, (weight.shape[0],), invariant=self._invariant, wide=True
        )

    @torch.inference_mode()
    def load(self, batch: DecodeBatch) -> None:
        self._batch = batch
        self._rows = len(batch.tokens)
        padding = _padded_rows(self._rows) - self._rows
        self._load_rows(batch, padding)
        self._lora = self._tiled_adapters(batch.sampling.policies, padding, self._tiles)
        if self._llama is None or not _kernel_samples(batch.sampling):
            self._sampling_state = self._sampling_tensors(batch.sampling)

    def _load_rows(self, batch: DecodeBatch, padding: int) -> None:
        """Loads the batch, and padding up to a number of rows that a graph is captured for."""
        sampling, count = batch.sampling, self._rows

        def column(values: Ints, pad: int) -> Ints:
            return np.pad(values, (0, padding), constant_values=pad)

        packed = np.stack(
            [  # in the order of the fields of DeviceRows
                column(batch.tokens, 0),
                column(batch.slot_starts, self._padding_index),
                column(batch.lengths, 0),
                column(sampling.seeds, 0),
                column(sampling.counts, 0),
                np.pad(np.ones(count, np.int64), (0, padding)),
            ]
        )
        self._state.packed[:, : count + padding].copy_(torch.from_numpy(packed))
        self._state.temperature[:count].copy_(torch.from_numpy(sampling.temperature))

    def _tiled_adapters(
        self, policies: Sequence[tuple[Policy, int]], padding: int, buffer: Tensor
    ) -> AdapterRows | None:
        """The adapters of the rows, with their tiles in the buffer that graphs read; padding rows are the
        base model's."""
        if self._llama is None or all(policy.applied is None for policy, _ in policies):
            return None
        tiles = row_tiles([*self._policy_spans(policies), (0, padding)], DECODE_TILE_ROWS)
        count = _padded_tiles(len(tiles))
        padded = np.pad(tiles, ((0, count - len(tiles)), (0, 0)))
        buffer[:count].copy_(torch.from_numpy(padded))
        return AdapterRows(self._slots.table, buffer[:count], DECODE_TILE_ROWS, self._side)

    @torch.inference_mode()
    def step(self) -> SampleFuture:
        assert self._batch is not None
        self._launch_copies()
        sampling = self._batch.sampling
        if self._llama is None:
            return self._eager_step(sampling)
        if not _kernel_samples(sampling):
            return self._logits_step(sampling)
        key = _graph_key(_padded_rows(self._rows), self._lora)
        if key not in self._graphs:
            self._graphs[key] = self._capture_step(self._llama, key.rows)
        self._graphs[key].replay()
        return self._copy_to_host()

    def _capture_step(self, backbone: LlamaBackbone, rows: int) -> torch.cuda.CUDAGraph:
        """The graph of a whole step. Capturing runs the step once, so the state is restored afterwards."""
        state = self._state
        changed = (state.packed, state.sampled_tokens, state.sampled_logprobs)
        saved = [tensor.clone() for tensor in changed]
        graph, _ = self._capture(lambda: sample_into(state.first(rows), self._next_logits(backbone, rows)))
        for tensor, values in zip(changed, saved, strict=True):
            tensor.copy_(values)
        return graph

    def _capture(self, work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        work()  # compiles the kernels
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread may copy weights to the host meanwhile, for a checkpoint.
        with torch.cuda.graph(graph, pool=self._graph_pool, capture_error_mode="thread_local"):
            output = work()
        return graph, output

    def _next_logits(self, backbone: LlamaBackbone, rows: int) -> Tensor:
        """The logits of the first `rows`, which reads and writes only what lies on the device."""
        state = self._state.first(rows)
        hidden = self._rows_hidden(backbone, state.tokens, state.slot_starts, state.lengths, self._lora)
        return self._head_logits(backbone, hidden, self._lora)

    def _rows_hidden(
        self,
        backbone: LlamaBackbone,
        tokens: Tensor,
        slot_starts: Tensor,
        positions: Tensor,
        lora: AdapterRows | None,
    ) -> Tensor:
        """The final hidden state of one token for each row."""
        attention = decode_attention(backbone.spec, self._pool, slot_starts, positions, self._longest)
        return fused_hidden(backbone, self._pool, tokens, slot_starts, positions, self._rope, attention, lora)

    def _logits_step(self, sampling: SamplingMetadata) -> SampleReady:
        """A step whose graph ends with the logits."""
        assert self._llama is not None
        key, state = _graph_key(_padded_rows(self._rows), self._lora), self._state.first(self._rows)
        if key not in self._logit_graphs:
            self._logit_graphs[key] = self._capture(partial(self._next_logits, self._llama, key.rows))
        graph, logits = self._logit_graphs[key]
        graph.replay()
        # A copy, because sampling overwrites the logits.
        rows = logits[: self._rows].to(torch.float32, copy=True)
        sampled = sample_logits(rows, sampling.topk, self._sampling_state)
        self._sampling_state.counts.add_(1)
        state.tokens.copy_(sampled.tokens)
        state.lengths.add_(1)
        return sampled

    def _eager_step(self, sampling: SamplingMetadata) -> SampleReady:
        """A step without a graph."""
        hidden, state = self.decode_hidden(), self._state.first(self._rows)
        sampled = self._sample(hidden, sampling, replace(self._sampling_state, counts=state.counts))
        state.tokens.copy_(sampled.tokens)
        state.counts.add_(1)
        return sampled

    @torch.inference_mode()
    def decode_hidden(self) -> Tensor:
        """The final hidden states of a step without a graph."""
        assert self._batch is not None
        self._launch_copies()
        state = self._state.first(self._rows)
        backbone, lora = self._weights(self._batch.sampling.policies)
        attend = self._decode_attend(state.slot_starts, state.lengths)
        hidden = backbone.hidden(state.tokens, state.lengths, attend, lora)
        state.lengths.add_(1)
        return hidden

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        if not tokens:
            return
        copies = [SlotCopy(source, target, tokens) for target in targets]
        if any(copy.depends_on(earlier) for copy in copies for earlier in self._copies):
            self._launch_copies()
        self._copies += copies

    @torch.inference_mode()
    def _launch_copies(self) -> None:
        """Makes the copies that were collected; whatever reads or writes slots does this first."""
        if self._copies:
            copies = self._tensor(np.array(self._copies, np.int64))
            longest = max(copy.tokens for copy in self._copies)
            copy_slots(self._pool.keys, self._pool.values, copies, longest)
            self._copies.clear()

    def prefill(self, chunks: Sequence[PrefillChunk]) -> list[Tensor]:
        self._launch_copies()
        return super().prefill(chunks)

    def zero(self, slot: KvSlot) -> None:
        self._launch_copies()
        super().zero(slot)

    def _decode_attend(self, slot_starts: Tensor, lengths: Tensor) -> Attend:
        pool, spec = self._pool, self._spec

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            pool.write(layer, slot_starts + lengths, k, v)
            keys, values = pool.keys[layer], pool.values[layer]
            window = spec.windows[layer]
            return attend_rows(q.contiguous(), keys, values, slot_starts, lengths, self._longest, window)

        return attend

    def _copy_to_host(self) -> _AsyncSample:
        tokens, logprobs = self._host_buffers[self._next_buffer]
        self._next_buffer = (self._next_buffer + 1) % len(self._host_buffers)
        tokens[: self._rows].copy_(self._state.sampled_tokens[: self._rows], non_blocking=True)
        logprobs[: self._rows].copy_(self._state.sampled_logprobs[: self._rows], non_blocking=True)
        copied = torch.cuda.current_stream().record_event()
        return _AsyncSample(tokens[: self._rows], logprobs[: self._rows], copied)

    def _prefill_attend(self, kv_indices: Tensor, chunks: Sequence[PrefillChunk]) -> Attend:
        if self._pool.keys.dtype == torch.float32:  # torch's variable-length kernel takes half precision only
            return super()._prefill_attend(kv_indices, chunks)
        return PrefillAttention(self._spec, self._pool, chunks).attend(kv_indices)


def _check_heads(spec: ModelSpec) -> None:
    """EngineUserError: the attention kernels do not support this model's heads."""
    shared, dim = spec.heads // spec.kv_heads, spec.head_dim
    if shared > MAX_HEADS_PER_KV or dim % 8 or dim > 256:
        raise EngineUserError(
            f"'{spec.name}' cannot run on a GPU: {shared} query heads of dimension {dim} share a key head. "
            f"Supported: up to {MAX_HEADS_PER_KV} heads, of a dimension that is a multiple of 8 up to 256.",
            "Use --device cpu.",
        )


def sample_into(state: DeviceRows, logits: Tensor) -> None:
    """Samples a token for every row of the logits and advances the rows."""
    sample_rows(
        logits,
        temperature=state.temperature,
        seeds=state.seeds,
        counts=state.counts,
        lengths=state.lengths,
        length_steps=state.length_steps,
        tokens=state.tokens,
        sampled_tokens=state.sampled_tokens,
        sampled_logprobs=state.sampled_logprobs,
    )


def _kernel_samples(sampling: SamplingMetadata) -> bool:
    """Whether the sampling kernel at the end of a graph supports this batch."""
    return not sampling.topk and not sampling.filtered


def _graph_key(rows: int, lora: AdapterRows | None) -> _GraphKey:
    if lora is None:
        return _GraphKey(rows, 0, 0)
    return _GraphKey(rows, len(lora.tiles), lora.table.rank)


def _padded_rows(rows: int) -> int:
    """The next number of rows that a graph is captured for."""
    return next((size for size in _GRAPH_ROWS if size >= rows), -(-rows // 256) * 256)


def _padded_tiles(tiles: int) -> int:
    """The next power of two: a tile without rows costs next to nothing, a graph for every number would."""
    return 1 << (tiles - 1).bit_length()


def _pinned(rows: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, dtype=torch.int64).pin_memory(), torch.zeros(rows).pin_memory()
