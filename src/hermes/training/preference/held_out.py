"""How often a policy agrees with people on pairs that it was not trained on.

A policy prefers the answer whose log-probability has risen more since the reference; a tie counts half, so
that the reference itself scores 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from hermes.training.preference.examples import PairExample, RenderedCompletion
from hermes.training.preference.reference import ReferenceModel, policy_logprobs
from hermes.training.service.client import AdapterClient
from hermes.training.session import TrainingRunSpec


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
