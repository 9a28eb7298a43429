"""Log-probabilities of completions, under the policy in training and under the reference it may not leave.

The reference is scored with the trainer's own forward pass by an adapter that holds its weights, because a
sampler's arithmetic differs from the trainer's in 16-bit precision by more than a preference is worth. Only
weights that exist as sampler weights alone are scored by the sampler.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from hermes.training.data.datums import LossSpec, sft_datum
from hermes.training.offline import OfflineObjective, Row
from hermes.training.preference.examples import PairExample, RenderedCompletion, RowSplit
from hermes.training.preference.losses import CompletionLogprob
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import TrainingRunSpec

if TYPE_CHECKING:
    import tinker

BASE = "base"
"""The name of the reference that is the base model itself."""
_SAMPLER = "/sampler_weights/"
_AT_ONCE = 256
"""Sequences in one request."""
CROSS_ENTROPY = LossSpec("cross_entropy", {})


class ReferenceModel:
    """The frozen model that the policy is compared with. `close` frees it at the service."""

    def __init__(self, run: TrainingRunSpec, client: AdapterClient, reference: str) -> None:
        """`reference`: BASE, or weights. `client`: the adapter in training, whose samplers are used."""
        self._client = client
        self._sampler = reference if _SAMPLER in reference else None
        self._resources = ExitStack()
        if self._sampler is None:
            lora = replace(run.lora, start=None if reference == BASE else reference, policy=None)
            meter = self._resources.enter_context(closing(TokenMeter(run.folder)))
            self._frozen = self._resources.enter_context(AdapterClient(run.connection, lora, meter))

    def logprobs(self, completions: Sequence[RenderedCompletion]) -> list[float]:
        """The summed log-probability of each completion."""
        if self._sampler is not None:
            return _sums(completions, self._client.score(self._sampler, _sequences(completions)))
        return policy_logprobs(self._frozen, completions)

    def close(self) -> None:
        self._resources.close()


class ReferencedObjective(OfflineObjective[Row]):
    """An objective that compares completions with a reference, whose log-probabilities are computed once."""

    keeps_reference = False
    """Whether the reference is needed during the steps too; else it is freed once the rows are scored."""

    def __init__(self, rows: RowSplit[Row], reference: str | None) -> None:
        """`reference`: BASE, or weights that the service has; None: the loss has none."""
        super().__init__(rows.train, rows.held_out)
        self.reference = reference
        self.model: ReferenceModel | None = None
        self.train_reference: list[float] = []
        self.held_out_reference: list[float] = []

    @abstractmethod
    def completions(self, rows: Sequence[Row]) -> list[RenderedCompletion]:
        """The completions that are scored, in the order of the rows."""

    def prepare(self, run: TrainingRunSpec, client: AdapterClient) -> None:
        self.close()
        trained, held_out = self.completions(self.train), self.completions(self.held_out)
        logprobs = [0.0] * (len(trained) + len(held_out))
        if self.reference is not None:
            self.model = ReferenceModel(run, client, self.reference)
            logprobs = self.model.logprobs([*trained, *held_out])
        self.train_reference, self.held_out_reference = logprobs[: len(trained)], logprobs[len(trained) :]
        if not self.keeps_reference:
            self.close()

    def close(self) -> None:
        if self.model is not None:
            self.model.close()
            self.model = None


def policy_logprobs(client: AdapterClient, completions: Sequence[RenderedCompletion]) -> list[float]:
    """The summed log-probability of each completion under the adapter's present weights."""
    sequences = _sequences(completions)
    distinct = list(dict.fromkeys(sequences))  # an answer is in several pairs
    rows: list[list[float]] = []
    for start in range(0, len(distinct), _AT_ONCE):
        rows += client.forward(distinct[start : start + _AT_ONCE])
    by_sequence = dict(zip(distinct, rows, strict=True))
    return _sums(completions, [by_sequence[sequence] for sequence in sequences])


def completion_logprobs(
    policy: Sequence[float], reference: Sequence[float], completions: Sequence[RenderedCompletion]
) -> list[CompletionLogprob]:
    return [
        CompletionLogprob(logprob, ref_logprob, completion.trained_tokens)
        for logprob, ref_logprob, completion in zip(policy, reference, completions, strict=True)
    ]


def gradient_datums(
    completions: Sequence[RenderedCompletion], gradients: Sequence[float]
) -> list[tinker.Datum]:
    """Data whose cross-entropy has these gradients by the completions' summed log-probabilities.

    Cross-entropy is −Σ weight · logprob, so the weight of each trained token is the negated gradient. A
    completion that is in several pairs is one datum: its gradients add up.
    """
    sums: dict[tuple[tuple[int, ...], tuple[bool, ...]], float] = {}
    for completion, gradient in zip(completions, gradients, strict=True):
        for context in completion.contexts:
            key = (context.tokens, context.loss_mask)
            sums[key] = sums.get(key, 0.0) + gradient
    return [
        sft_datum(tokens, [-gradient if in_loss else 0.0 for in_loss in loss_mask])
        for (tokens, loss_mask), gradient in sums.items()
    ]


def _sequences(completions: Sequence[RenderedCompletion]) -> list[tuple[int, ...]]:
    return [context.tokens for completion in completions for context in completion.contexts]


def _sums(completions: Sequence[RenderedCompletion], rows: Sequence[Sequence[float]]) -> list[float]:
    remaining = iter(rows)
    return [
        sum(
            logprob
            for context in completion.contexts
            for logprob, in_loss in zip(next(remaining), context.loss_mask, strict=True)
            if in_loss
        )
        for completion in completions
    ]


class HeldOutPreference:
    """Measures an adapter in training; the reference is scored once, at the first measurement."""

    def __init__(self, run: TrainingRunSpec, pairs: Sequence[PairExample], reference: str) -> None:
        self._run = run
        self._reference_name = reference
        self._completions: list[RenderedCompletion] = [
            completion for pair in pairs for completion in (pair.chosen, pair.rejected)
        ]
        self._reference: list[float] = []

    def __call__(self, client: AdapterClient) -> float:
        if not self._reference:
            with closing(ReferenceModel(self._run, client, self._reference_name)) as model:
                self._reference = model.logprobs(self._completions)
        policy = policy_logprobs(client, self._completions)
        gains = [new - old for new, old in zip(policy, self._reference, strict=True)]
        return agreement(gains[::2], gains[1::2])


def agreement(chosen: Sequence[float], rejected: Sequence[float]) -> float:
    """The share of pairs in which the chosen answer gained more; a tie counts half."""
    wins = sum(
        1.0 if better > worse else 0.5 if better == worse else 0.0
        for better, worse in zip(chosen, rejected, strict=True)
    )
    return wins / len(chosen)
