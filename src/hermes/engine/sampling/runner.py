"""The forward passes of sampling: prefill of prompts, and decode steps of the running batch.

`ModelRunner` is the interface between the scheduler and a device. It owns the keys and values and the state
of the running batch; between two `load`s a decode step needs nothing from the host, and the host may fetch
the sampled tokens up to `depth` steps later. `TorchRunner` is the implementation for a CPU: it attends over
adjacent slots in one call, and a batch of a single policy may run on weights with its adapter merged in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.kv_cache import KvPool, KvSlot
from hermes.engine.attention.kv_decode import decode_attend, prefill_attend, shared_prefixes, slot_runs
from hermes.engine.lora.weights import LoraSpans, LoraView, Policy
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.cpu_prepacked import lm_head_linear, prepack
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.sampling.logits import SamplingTensors, sample_tokens
from hermes.engine.spec import HEAD, ModelSpec
from hermes.engine.types import Floats, Ints


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of one prompt to compute; the tokens before them are in the slot already."""

    policy: Policy
    slot_start: int
    offset: int
    """Position of the first of the tokens."""
    tokens: Ints
    outputs: int
    """How many of the last tokens' final hidden states to return."""


def combine_policies(policies: Iterable[tuple[Policy, int]]) -> tuple[tuple[Policy, int], ...]:
    """(policy, rows) pairs, with consecutive ones of the same policy combined."""
    joined: list[tuple[Policy, int]] = []
    for policy, rows in policies:
        if joined and joined[-1][0] is policy:
            rows += joined.pop()[1]
        joined.append((policy, rows))
    return tuple(joined)


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """How the next token of each row is sampled; arrays on the host."""

    policies: tuple[tuple[Policy, int], ...]
    """Each policy with its number of consecutive rows."""
    seeds: Ints
    counts: Ints
    """Tokens sampled so far."""
    temperature: Floats
    top_k: Ints
    top_p: Floats
    topk: int = 0
    """How many alternatives to report with each token."""

    @property
    def filtered(self) -> bool:
        """Whether some row uses top-k or top-p."""
        return bool((self.top_k > 0).any() or (self.top_p < 1).any())


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """The running sequences, ordered by policy and then by slot."""

    slot_starts: Ints
    slot_sizes: Ints
    lengths: Ints
    """Tokens in the cache, which is the position of the last sampled token: that one is not in it yet."""
    tokens: Ints
    """The last sampled token of each row."""
    prompts: Sequence[Ints]
    """The part of each row's prompt that is in the cache."""
    sampling: SamplingMetadata


class SampledTokens(NamedTuple):
    tokens: Ints
    logprobs: Floats
    topk_ids: Ints | None
    topk_logprobs: Floats | None


class SampleFuture(Protocol):
    def fetch(self) -> SampledTokens:
        """Blocks until the device is done."""
        ...


class ModelRunner(Protocol):
    depth: int
    """How many decode steps may be in flight before the first must be fetched."""

    def prefill(self, chunks: Sequence[PrefillChunk]) -> list[Tensor]:
        """Computes the chunks and stores their keys and values; returns [outputs, hidden] for each."""
        ...

    def logits(self, policy: Policy, hidden: Tensor) -> Tensor:
        """[rows, vocab] fp32, at temperature 1."""
        ...

    def sample(self, hidden: Tensor, sampling: SamplingMetadata) -> SampleFuture:
        """Samples a token for each row of final hidden states [rows, hidden]."""
        ...

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """Copies the first tokens of the slot that starts at `source` to other slots."""
        ...

    def zero(self, slot: KvSlot) -> None:
        """Overwrites the slot, so that values which are not finite cannot reach another sequence."""
        ...

    def load(self, batch: DecodeBatch) -> None:
        """Replaces the running batch. No step may be in flight."""
        ...

    def step(self) -> SampleFuture:
        """Samples one more token for every row of the running batch."""
        ...

    def merge(self, policy: Policy) -> None:
        """Runs batches of only this policy on weights with its adapter merged in from now on."""
        ...

    def unmerge(self, policy: Policy) -> None:
        """Frees the policy's merged weights. None of its sequences may be running."""
        ...


@dataclass(frozen=True, slots=True)
class SampleReady:
    tokens: Tensor
    logprobs: Tensor
    topk: tuple[Tensor, Tensor] | None

    def fetch(self) -> SampledTokens:
        ids, logprobs = self.topk or (None, None)
        return SampledTokens(
            self.tokens.cpu().numpy(),
            self.logprobs.cpu().numpy(),
            None if ids is None else ids.cpu().numpy(),
            None if logprobs is None else logprobs.cpu().numpy(),
        )


def sample_logits(logits: Tensor, topk: int, tensors: SamplingTensors) -> SampleReady:
    """A token for each row of logits, which are overwritten, with the `topk` likeliest alternatives."""
    if not topk:
        return SampleReady(*sample_tokens(logits, tensors), None)
    scale = torch.where(tensors.temperature <= 0, 1.0, tensors.temperature)[:, None]
    best = torch.topk(torch.log_softmax(logits / scale, -1), topk, dim=-1)
    return SampleReady(*sample_tokens(logits, tensors), (best.indices, best.values))


class TorchRunner:
    depth = 0

    def __init__(self, backbone: Backbone, pool: KvPool, spec: ModelSpec | None = None) -> None:
        """`spec`: the shape of the attention, where the backbone has some of the heads only."""
        self._plain = backbone
        self._prepacked: Backbone | None = prepack(backbone)
        """None while another policy's merged weights take its place: together they would be a third copy."""
        self._spec = spec or backbone.spec
        self._pool = pool
        self._merged: tuple[Policy, Backbone] | None = None
        self._batch: DecodeBatch | None = None

    def merge(self, policy: Policy) -> None:
        if isinstance(self._plain, LlamaBackbone) and self._plain.is_quantized:
            return
        if policy.weights is not None and (self._merged is None or self._merged[0] is not policy):
            self._merged = self._prepacked = None  # freed first: two copies may not fit into memory
            self._merged = (policy, prepack(self._plain, policy.weights))

    def unmerge(self, policy: Policy) -> None:
        if self._merged is not None and self._merged[0] is policy:
            self._merged = None
        if self._batch is not None and any(running is policy for running, _ in self._batch.sampling.policies):
            self._batch = None

    @torch.inference_mode()
    def prefill(self, chunks: Sequence[PrefillChunk]) -> list[Tensor]:
        hidden = self._prefill_hidden(chunks)
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks]).tolist()
        rows = [np.arange(end - chunk.outputs, end) for chunk, end in zip(chunks, ends, strict=True)]
        outputs = hidden.index_select(0, self._tensor(np.concatenate(rows)))
        return list(torch.split(outputs, [chunk.outputs for chunk in chunks]))

    def _prefill_hidden(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        """Final hidden states of all tokens of the chunks; their keys and values are stored in the slots."""
        tokens = np.concatenate([chunk.tokens for chunk in chunks])
        offsets = [np.arange(len(chunk.tokens)) + chunk.offset for chunk in chunks]
        positions = np.concatenate(offsets)
        kv_indices = np.concatenate(
            [offset + chunk.slot_start for offset, chunk in zip(offsets, chunks, strict=True)]
        )
        attend = self._prefill_attend(self._tensor(kv_indices), chunks)
        backbone, lora = self._weights(
            combine_policies((chunk.policy, len(chunk.tokens)) for chunk in chunks)
        )
        return backbone.hidden(self._tensor(tokens), self._tensor(positions), attend, lora)

    def _prefill_attend(self, kv_indices: Tensor, chunks: Sequence[PrefillChunk]) -> Attend:
        ranges = [(chunk.slot_start, chunk.offset, len(chunk.tokens)) for chunk in chunks]
        return prefill_attend(self._spec, self._pool, kv_indices, ranges)

    @torch.inference_mode()
    def logits(self, policy: Policy, hidden: Tensor) -> Tensor:
        return self._logits(((policy, len(hidden)),), hidden)

    @torch.inference_mode()
    def sample(self, hidden: Tensor, sampling: SamplingMetadata) -> SampleReady:
        return self._sample(hidden, sampling, self._sampling_tensors(sampling))

    @torch.inference_mode()
    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        self._pool.copy(source, targets, tokens)

    @torch.inference_mode()
    def zero(self, slot: KvSlot) -> None:
        self._pool.zero(slot)

    def load(self, batch: DecodeBatch) -> None:
        self._batch = batch
        rows_per_policy = [rows for _, rows in batch.sampling.policies]
        prefixes = shared_prefixes(self._spec, rows_per_policy, batch.slot_starts, batch.prompts)
        self._runs = slot_runs(batch.slot_starts, batch.slot_sizes, prefixes, self._pool)
        self._lengths = batch.lengths.copy()
        self._slot_starts = self._tensor(batch.slot_starts)
        self._tokens = self._tensor(batch.tokens)
        self._sampling_state = self._sampling_tensors(batch.sampling)

    @torch.inference_mode()
    def step(self) -> SampleFuture:
        hidden = self.decode_hidden()
        assert self._batch is not None
        sampled = self._sample(hidden, self._batch.sampling, self._sampling_state)
        self._tokens = sampled.tokens
        self._sampling_state.counts.add_(1)
        return sampled

    @torch.inference_mode()
    def decode_hidden(self) -> Tensor:
        """Final hidden states of the running batch, whose sequences are one token longer afterwards."""
        assert self._batch is not None
        positions = self._tensor(self._lengths)
        kv_indices = self._slot_starts + positions
        attend = decode_attend(self._spec, self._pool, kv_indices, self._runs, self._lengths)
        backbone, lora = self._weights(self._batch.sampling.policies)
        hidden = backbone.hidden(self._tokens, positions, attend, lora)
        self._lengths += 1
        return hidden

    def _sample(self, hidden: Tensor, sampling: SamplingMetadata, tensors: SamplingTensors) -> SampleReady:
        return sample_logits(self._logits(sampling.policies, hidden), sampling.topk, tensors)

    def _logits(self, policies: Sequence[tuple[Policy, int]], hidden: Tensor) -> Tensor:
        backbone, lora = self._weights(policies)
        logits = lm_head_linear(backbone, hidden)
        if lora is not None:
            (logits,) = lora.apply(HEAD, hidden, (logits,))
        return logits.float()

    def _weights(self, policies: Sequence[tuple[Policy, int]]) -> tuple[Backbone, LoraView | None]:
        """The weights for rows of these policies: merged ones, or the base with adapters over row spans."""
        if len(policies) > 1:
            ends = np.cumsum([rows for _, rows in policies]).tolist()
            spans = zip([0, *ends], ends, (policy.applied for policy, _ in policies), strict=False)
            return self._base, LoraSpans(tuple(spans))
        policy = policies[0][0]
        if self._merged is not None and self._merged[0] is policy:
            return self._merged[1], None
        return self._base, policy.applied

    @property
    def _base(self) -> Backbone:
        """The weights without an adapter: prepacked, unless a policy's merged ones are."""
        if self._prepacked is None and self._merged is None:
            self._prepacked = prepack(self._plain)
        return self._prepacked or self._plain

    def _sampling_tensors(self, sampling: SamplingMetadata) -> SamplingTensors:
        return SamplingTensors(
            seeds=self._tensor(sampling.seeds),
            counts=self._tensor(sampling.counts.copy()),
            temperature=self._tensor(sampling.temperature),
            top_k=self._tensor(sampling.top_k),
            top_p=self._tensor(sampling.top_p),
            greedy=bool((sampling.temperature <= 0).any()),
            filtered=sampling.filtered,
        )

    def _tensor(self, values: Ints | Floats) -> Tensor:
        return torch.from_numpy(values).to(self._plain.device)
