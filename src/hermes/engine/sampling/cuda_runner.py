"""The runner for a CUDA device: a decode step is one CUDA graph, and the host is a step ahead of it.

Between two `load`s everything a step reads and writes stays on the device: tokens, lengths, seeds. The step
for a number of rows is captured once and replayed; rows are padded to the next captured number, and padding
rows write to an index of the pool that no sequence uses. The rows of each policy run on weights with its
adapter merged in (merged_weights.py), one graph after the other. If some row uses top-k, top-p or
alternatives, the graphs end with the logits and all rows are sampled outside of them. Batches of more
policies than there are merged copies run without a graph. Sampled tokens reach the host by an asynchronous
copy.
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

from hermes.engine.attention.base import Attend
from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.kernels.attention import MAX_HEADS_PER_KV, attend_rows
from hermes.engine.kernels.decode import copy_slots
from hermes.engine.kernels.sample import sample_rows
from hermes.engine.lora.policy import Policy
from hermes.engine.lora.weights import LoraView
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.products import head_logits
from hermes.engine.sampling.cuda_fused import PrefillAttention, decode_attention, fused_hidden
from hermes.engine.sampling.merged_weights import MAX_COPIES, DeviceRows, MergedCopies, MergedCopy
from hermes.engine.sampling.runner import (
    DecodeBatch,
    PrefillChunk,
    SampledTokens,
    SampleFuture,
    SampleReady,
    SamplingMetadata,
    TorchRunner,
    sample_logits,
)
from hermes.engine.spec import ModelSpec
from hermes.engine.types import EngineCapacityError, EngineUserError, Ints

T = TypeVar("T")

_GRAPH_ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024)
"""Numbers of rows a step is captured for; above them, multiples of 256."""

PADDING_KV_TOKENS = 1
"""Indices at the end of the pool that only padding rows write to."""


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
        self._max_rows = _padded_rows(max_batch)
        self._state = DeviceRows.empty(self._max_rows, backbone.device)
        """For batches that run without a graph."""
        self._padding_index = pool.keys.shape[1] - PADDING_KV_TOKENS
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._copies = self._make_copies()
        self._invariant = isinstance(backbone, LlamaBackbone) and backbone.batch_invariant
        # A row that has ended may run on for the steps that are in flight.
        self._longest = min(backbone.spec.max_length, pool.keys.shape[1]) + self.depth + 1
        """Tokens that a row may have."""
        self._rope = self._rope_table()
        self._parts: tuple[tuple[MergedCopy, int], ...] = ()
        """The merged copies of the running batch with their numbers of rows; empty if it has no graph."""
        self._rows = 0
        self._host_buffers = [_pinned(self._max_rows) for _ in range(self.depth + 2)]
        self._next_buffer = 0

    def _make_copies(self) -> MergedCopies | None:
        base = self._base
        if not isinstance(base, LlamaBackbone):
            return None
        limit = self._max_rows if base.batch_invariant else MAX_COPIES  # exact: no policy runs unmerged
        return MergedCopies(base, self._max_rows, lambda: torch.cuda.mem_get_info(base.device)[0], limit)

    @torch.inference_mode()
    def _rope_table(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of every position, [positions, head_dim / 2], rounded as in training."""
        base = self._base
        if not isinstance(base, LlamaBackbone):
            return torch.empty(0), torch.empty(0)
        cos, sin = base.rotary(torch.arange(self._longest, device=base.device))
        return cos[:, 0].contiguous(), sin[:, 0].contiguous()

    def merge(self, policy: Policy) -> None:
        self._merged_copy(policy)

    def unmerge(self, policy: Policy) -> None:
        super().unmerge(policy)
        if self._copies is not None:
            self._copies.drop(policy)

    def _merged_copy(self, policy: Policy) -> MergedCopy | None:
        """The model with the policy's adapter merged in; None if there is no memory for one more copy."""
        if self._copies is None:
            return None
        policies = () if self._batch is None else self._batch.sampling.policies
        copy = self._copies.merge(policy, [running for running, _ in policies])
        if copy is None and self._invariant:
            raise EngineCapacityError(
                "There is no memory for another copy of the model with an adapter merged in, and --exact "
                "samples from merged weights only.",
                "Sample from fewer policies at once, use less --kv-gib, or start the engine without --exact.",
            )
        return copy

    def _weights(self, policies: Sequence[tuple[Policy, int]]) -> tuple[Backbone, LoraView | None]:
        if self._copies is not None and len(policies) == 1:
            copy = self._copies.get(policies[0][0])
            if copy is not None:
                return copy.backbone, None
        return super()._weights(policies)

    def _prefill_hidden(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        hidden = [self._policy_hidden(policy, list(group)) for policy, group in groupby(chunks, _policy)]
        return hidden[0] if len(hidden) == 1 else torch.cat(hidden)

    def _policy_hidden(self, policy: Policy, chunks: Sequence[PrefillChunk]) -> Tensor:
        copy = self._merged_copy(policy)
        if copy is None or self._pool.keys.dtype == torch.float32:
            return super()._prefill_hidden(chunks)
        lengths = [len(chunk.tokens) for chunk in chunks]
        columns = (
            np.concatenate([chunk.tokens for chunk in chunks]),
            np.repeat([chunk.slot_start for chunk in chunks], lengths),
            np.concatenate([np.arange(len(chunk.tokens)) + chunk.offset for chunk in chunks]),
        )
        tokens, slot_starts, positions = (self._tensor(column) for column in columns)
        attention = PrefillAttention(copy.backbone.spec, self._pool, chunks).from_pool
        return fused_hidden(copy.backbone, self._pool, tokens, slot_starts, positions, self._rope, attention)

    @torch.inference_mode()
    def sample(self, hidden: Tensor, sampling: SamplingMetadata) -> SampleReady:
        if not self._invariant or not _kernel_samples(sampling):
            return super().sample(hidden, sampling)
        # The kernel that ends a decode step, so that a first token's logprob has the same bits as a later's.
        rows = DeviceRows.empty(len(hidden), hidden.device)
        rows.seeds.copy_(self._tensor(sampling.seeds))
        rows.counts.copy_(self._tensor(sampling.counts))
        rows.temperature.copy_(self._tensor(sampling.temperature))
        sample_into(rows, self._logits(sampling.policies, hidden))
        return SampleReady(rows.sampled_tokens, rows.sampled_logprobs, None)

    def _logits(self, policies: Sequence[tuple[Policy, int]], hidden: Tensor) -> Tensor:
        if self._copies is None:
            return super()._logits(policies, hidden)
        logits, start = [], 0
        for policy, rows in policies:
            copy = self._merged_copy(policy)
            if copy is None:
                return super()._logits(policies, hidden)
            states = hidden[start : start + rows]
            logits.append(head_logits(states, copy.backbone.head_weight, invariant=self._invariant))
            start += rows
        return torch.cat(logits)

    @torch.inference_mode()
    def load(self, batch: DecodeBatch) -> None:
        self._batch = batch
        self._rows = len(batch.tokens)
        self._parts = self._policy_copies(batch.sampling)
        start = 0
        for copy, rows in self._parts:
            self._load_rows(copy.state, batch, slice(start, start + rows))
            start += rows
        if not self._parts:
            self._load_rows(self._state, batch, slice(0, self._rows))
        if not self._parts or not _kernel_samples(batch.sampling):
            self._sampling_state = self._sampling_tensors(batch.sampling)

    def _policy_copies(self, sampling: SamplingMetadata) -> tuple[tuple[MergedCopy, int], ...]:
        """Each policy's merged copy with its rows; empty if a policy has none."""
        copies = [(self._merged_copy(policy), rows) for policy, rows in sampling.policies]
        parts = tuple((copy, rows) for copy, rows in copies if copy is not None)
        return parts if len(parts) == len(copies) else ()

    def _load_rows(self, state: DeviceRows, batch: DecodeBatch, rows: slice) -> None:
        """Loads rows of the batch, and padding up to a number of rows that a graph is captured for."""
        sampling, count = batch.sampling, rows.stop - rows.start
        padding = _padded_rows(count) - count

        def column(values: Ints, pad: int) -> Ints:
            return np.pad(values[rows], (0, padding), constant_values=pad)

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
        state.packed[:, : count + padding].copy_(torch.from_numpy(packed))
        state.temperature[:count].copy_(torch.from_numpy(sampling.temperature[rows]))

    @torch.inference_mode()
    def step(self) -> SampleFuture:
        assert self._batch is not None
        sampling = self._batch.sampling
        if not self._parts:
            return self._eager_step(sampling)
        if not _kernel_samples(sampling):
            return self._logits_step(sampling)
        for copy, rows in self._parts:
            padded = _padded_rows(rows)
            if padded not in copy.graphs:
                copy.graphs[padded] = self._capture_step(copy, padded)
            copy.graphs[padded].replay()
        return self._copy_to_host()

    def _capture_step(self, copy: MergedCopy, rows: int) -> torch.cuda.CUDAGraph:
        """The graph of a whole step. Capturing runs the step once, so the state is restored afterwards."""
        state = copy.state
        changed = (state.packed, state.sampled_tokens, state.sampled_logprobs)
        saved = [tensor.clone() for tensor in changed]
        graph, _ = self._capture(lambda: self._run_step(copy, rows))
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

    def _run_step(self, copy: MergedCopy, rows: int) -> None:
        """One step of the first `rows`, which reads and writes only the state on the device."""
        sample_into(copy.state.first(rows), self._next_logits(copy, rows))

    def _next_logits(self, copy: MergedCopy, rows: int) -> Tensor:
        backbone, state = copy.backbone, copy.state.first(rows)
        slot_starts, lengths = state.slot_starts, state.lengths
        attention = decode_attention(backbone.spec, self._pool, slot_starts, lengths, self._longest)
        hidden = fused_hidden(backbone, self._pool, state.tokens, slot_starts, lengths, self._rope, attention)
        return head_logits(hidden, backbone.head_weight, invariant=self._invariant)

    def _logits_step(self, sampling: SamplingMetadata) -> SampleReady:
        """A step whose graphs end with the logits."""
        logits = []
        for copy, rows in self._parts:
            padded = _padded_rows(rows)
            if padded not in copy.logits:
                copy.logits[padded] = self._capture(partial(self._next_logits, copy, padded))
            graph, output = copy.logits[padded]
            graph.replay()
            # A copy, because the next graph may use the same memory.
            logits.append(output[:rows].to(torch.float32, copy=True))
        sampled = sample_logits(torch.cat(logits), sampling.topk, self._sampling_state)
        self._sampling_state.counts.add_(1)
        start = 0
        for copy, rows in self._parts:
            copy.state.tokens[:rows] = sampled.tokens[start : start + rows]
            copy.state.lengths[:rows] += 1
            start += rows
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
        """Of a batch that has no merged copies."""
        assert self._batch is not None and not self._parts
        state = self._state.first(self._rows)
        backbone, lora = self._weights(self._batch.sampling.policies)
        attend = self._decode_attend(state.slot_starts, state.lengths)
        hidden = backbone.hidden(state.tokens, state.lengths, attend, lora)
        state.lengths.add_(1)
        return hidden

    @torch.inference_mode()
    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        if targets and tokens:
            starts = torch.tensor(targets, dtype=torch.int64).pin_memory()
            on_device = starts.to(self._base.device, non_blocking=True)
            copy_slots(self._pool.keys, self._pool.values, source, on_device, tokens)

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
        start = 0
        for copy, rows in self._parts:
            part = slice(start, start + rows)
            tokens[part].copy_(copy.state.sampled_tokens[:rows], non_blocking=True)
            logprobs[part].copy_(copy.state.sampled_logprobs[:rows], non_blocking=True)
            start += rows
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


def _policy(chunk: PrefillChunk) -> Policy:
    return chunk.policy


def _padded_rows(rows: int) -> int:
    """The next number of rows that a graph is captured for."""
    return next((size for size in _GRAPH_ROWS if size >= rows), -(-rows // 256) * 256)


def _pinned(rows: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(rows, dtype=torch.int64).pin_memory(), torch.zeros(rows).pin_memory()
