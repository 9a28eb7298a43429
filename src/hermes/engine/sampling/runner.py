"""The forward passes of sampling: prompts into the cache, and one more token for every running sequence.

`ModelRunner` is all that the scheduler asks of a device. It owns the keys and values and the state of the
running batch; between two `load`s a decode step needs nothing from the host, and the host may fetch the drawn
tokens up to `depth` steps later. `TorchRunner` is the one for a CPU: it attends over slots that lie
side by side in one call, and where a batch has one adapter only it may run on weights with that merged in.
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
from hermes.engine.attention.kv_decode import prompts_attend, rows_attend, runs_of, stems_of
from hermes.engine.lora.policy import Policy
from hermes.engine.lora.weights import LoraSpans, LoraView
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.cpu_prepacked import head_product, pack
from hermes.engine.sampling.logits import Draws, choose
from hermes.engine.spec import HEAD
from hermes.engine.types import Floats, Ints


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens of one prompt to be computed; those before are in the slot already."""

    policy: Policy
    cell: int
    """The slot's first cell."""
    offset: int
    """Position of the first of the tokens."""
    tokens: Ints
    wanted: int
    """The final hidden states of so many of the last tokens are wanted."""


def join(policies: Iterable[tuple[Policy, int]]) -> tuple[tuple[Policy, int], ...]:
    """Neighbours of one policy as one."""
    joined: list[tuple[Policy, int]] = []
    for policy, rows in policies:
        if joined and joined[-1][0] is policy:
            rows += joined.pop()[1]
        joined.append((policy, rows))
    return tuple(joined)


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """How the rows' next tokens are chosen, on the host."""

    policies: tuple[tuple[Policy, int], ...]
    """Whose weights so many rows are sampled from, in order."""
    seeds: Ints
    counts: Ints
    temperature: Floats
    top_k: Ints
    top_p: Floats
    topk: int = 0
    """How many alternatives to report with each token."""

    @property
    def filtered(self) -> bool:
        """Whether some row does not draw from the whole vocabulary."""
        return bool((self.top_k > 0).any() or (self.top_p < 1).any())


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """The running sequences, in the order of their policies and then of their slots."""

    cells: Ints
    """First cell of each one's slot."""
    sizes: Ints
    """Cells of each one's slot."""
    lengths: Ints
    """Tokens in the cache: the position of the last token drawn, which is not in it yet."""
    tokens: Ints
    """The last token drawn."""
    prompts: Sequence[Ints]
    """What each one's sequence begins with, as far as it is in the cache."""
    choice: SamplingMetadata


class SampledTokens(NamedTuple):
    tokens: Ints
    logprobs: Floats
    topk_ids: Ints | None
    topk_logprobs: Floats | None


class SampleFuture(Protocol):
    def fetch(self) -> SampledTokens:
        """Waits for the device."""
        ...


class ModelRunner(Protocol):
    depth: int
    """How many decode steps may be under way before the first must be fetched."""

    def prefill(self, pieces: Sequence[PrefillChunk]) -> list[Tensor]:
        """Computes the pieces' tokens into their slots; the wanted hidden states [wanted, hidden] of each."""
        ...

    def logits(self, policy: Policy, hidden: Tensor) -> Tensor:
        """[rows, vocab] fp32, at temperature 1."""
        ...

    def draw(self, hidden: Tensor, choice: SamplingMetadata) -> SampleFuture:
        """The next tokens after hidden states [rows, hidden]."""
        ...

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """The first tokens of the slot at cell `source` into other slots."""
        ...

    def wipe(self, slot: KvSlot) -> None:
        """Nothing of what is in the slot is read again, not even to be weighed by 0."""
        ...

    def load(self, batch: DecodeBatch) -> None:
        """The running batch is this one from now on. No step may be under way."""
        ...

    def step(self) -> SampleFuture:
        """One more token for every row of the running batch."""
        ...

    def merge(self, policy: Policy) -> None:
        """From now on, run batches of this policy alone on weights with its adapter merged in."""
        ...

    def unmerge(self, policy: Policy) -> None:
        """Let go of what is this policy's: nothing of it is running, and nothing will."""
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


def pick(logits: Tensor, choice: SamplingMetadata, draws: Draws) -> SampleReady:
    """A token for each row of logits, which are overwritten; with the alternatives that were asked for."""
    if not choice.topk:
        return SampleReady(*choose(logits, draws), None)
    scale = torch.where(draws.temperature <= 0, 1.0, draws.temperature)[:, None]
    best = torch.topk(torch.log_softmax(logits / scale, -1), choice.topk, dim=-1)
    return SampleReady(*choose(logits, draws), (best.indices, best.values))


class TorchRunner:
    depth = 0

    def __init__(self, backbone: Backbone, pool: KvPool) -> None:
        self._base = pack(backbone)
        self._pool = pool
        self._merged: tuple[Policy, Backbone] | None = None
        self._batch: DecodeBatch | None = None

    def merge(self, policy: Policy) -> None:
        if policy.weights is not None and (self._merged is None or self._merged[0] is not policy):
            self._merged = None  # two merged copies never lie in memory at once
            self._merged = (policy, self._base.merged(policy.weights))

    def unmerge(self, policy: Policy) -> None:
        if self._merged is not None and self._merged[0] is policy:
            self._merged = None
        if self._batch is not None and any(one is policy for one, _ in self._batch.choice.policies):
            self._batch = None

    @torch.inference_mode()
    def prefill(self, pieces: Sequence[PrefillChunk]) -> list[Tensor]:
        hidden = self._prompts_hidden(pieces)
        ends = np.cumsum([len(piece.tokens) for piece in pieces]).tolist()
        rows = [np.arange(end - piece.wanted, end) for piece, end in zip(pieces, ends, strict=True)]
        wanted = hidden.index_select(0, self._tensor(np.concatenate(rows)))
        return list(torch.split(wanted, [piece.wanted for piece in pieces]))

    def _prompts_hidden(self, pieces: Sequence[PrefillChunk]) -> Tensor:
        """Final hidden states of all the pieces' tokens, whose keys and values are then in their slots."""
        tokens = np.concatenate([piece.tokens for piece in pieces])
        positions = np.concatenate([np.arange(len(p.tokens)) + p.offset for p in pieces])
        cells = np.concatenate([np.arange(len(p.tokens)) + p.cell + p.offset for p in pieces])
        attend = self._prompts_attend(self._tensor(cells), pieces)
        backbone, lora = self._weights(join((p.policy, len(p.tokens)) for p in pieces))
        return backbone.hidden(self._tensor(tokens), self._tensor(positions), attend, lora)

    def _prompts_attend(self, cells: Tensor, pieces: Sequence[PrefillChunk]) -> Attend:
        places = [(piece.cell, piece.offset, len(piece.tokens)) for piece in pieces]
        return prompts_attend(self._base.spec, self._pool, cells, places)

    @torch.inference_mode()
    def logits(self, policy: Policy, hidden: Tensor) -> Tensor:
        return self._logits(((policy, len(hidden)),), hidden)

    @torch.inference_mode()
    def draw(self, hidden: Tensor, choice: SamplingMetadata) -> SampleReady:
        return self._draw(hidden, choice, self._draws(choice))

    @torch.inference_mode()
    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        self._pool.copy(source, targets, tokens)

    @torch.inference_mode()
    def wipe(self, slot: KvSlot) -> None:
        self._pool.wipe(slot)

    def load(self, batch: DecodeBatch) -> None:
        self._batch = batch
        policies = [rows for _, rows in batch.choice.policies]
        stems = stems_of(self._base.spec, policies, batch.cells, batch.prompts)
        self._runs = runs_of(batch.cells, batch.sizes, stems, self._pool)
        self._lengths = batch.lengths.copy()
        self._cells = self._tensor(batch.cells)
        self._tokens = self._tensor(batch.tokens)
        self._choice = self._draws(batch.choice)

    @torch.inference_mode()
    def step(self) -> SampleFuture:
        assert self._batch is not None
        choice = self._batch.choice
        positions = self._tensor(self._lengths)
        cells = self._cells + positions
        attend = rows_attend(self._base.spec, self._pool, cells, self._runs, self._lengths)
        backbone, lora = self._weights(choice.policies)
        hidden = backbone.hidden(self._tokens, positions, attend, lora)
        drawn = self._draw(hidden, choice, self._choice)
        self._tokens = drawn.tokens
        self._lengths += 1
        self._choice.counts.add_(1)
        return drawn

    def _draw(self, hidden: Tensor, choice: SamplingMetadata, draws: Draws) -> SampleReady:
        return pick(self._logits(choice.policies, hidden), choice, draws)

    def _logits(self, policies: Sequence[tuple[Policy, int]], hidden: Tensor) -> Tensor:
        backbone, lora = self._weights(policies)
        logits = head_product(backbone, hidden)
        if lora is not None:
            (logits,) = lora.apply(HEAD, hidden, (logits,))
        return logits.float()

    def _weights(self, policies: Sequence[tuple[Policy, int]]) -> tuple[Backbone, LoraView | None]:
        """What to run rows of these policies on: the merged weights, or the base with adapters over spans."""
        if len(policies) > 1:
            ends = np.cumsum([rows for _, rows in policies]).tolist()
            spans = zip([0, *ends], ends, (policy.applied for policy, _ in policies), strict=False)
            return self._base, LoraSpans(tuple(spans))
        policy = policies[0][0]
        if self._merged is not None and self._merged[0] is policy:
            return self._merged[1], None
        return self._base, policy.applied

    def _draws(self, choice: SamplingMetadata) -> Draws:
        return Draws(
            seeds=self._tensor(choice.seeds),
            counts=self._tensor(choice.counts.copy()),
            temperature=self._tensor(choice.temperature),
            top_k=self._tensor(choice.top_k),
            top_p=self._tensor(choice.top_p),
            greedy=bool((choice.temperature <= 0).any()),
            filtered=choice.filtered,
        )

    def _tensor(self, values: Ints | Floats) -> Tensor:
        return torch.from_numpy(values).to(self._base.device)
