"""How the candidate and the current policy differ on held-out ratings: which answers became more likely.

The candidate wins a comparison if the answer that people preferred gained more log-probability over the
current policy than the other one. If the ratings say nothing (they are random), the winner of each comparison
is a coin toss, whatever the candidate has learned: that is what the sequential test needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import UsageError
from hermes.policies.rows import HeldOutComparison, RatedAnswerText

if TYPE_CHECKING:
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.preference.examples import RenderedCompletion
    from hermes.training.service.client import LoraSpec, ServiceConnection


@dataclass(frozen=True, slots=True)
class ComparisonGain:
    """One comparison, decided."""

    comparison: HeldOutComparison
    better_gain: float
    """Log-probability that the candidate gives the preferred answer beyond the current policy, a token."""
    worse_gain: float

    @property
    def result(self) -> float:
        """1: the candidate agrees with people more than the current policy does; 0: less."""
        if self.better_gain == self.worse_gain:
            return 0.5
        return float(self.better_gain > self.worse_gain)


def compare_likelihoods(
    comparisons: Sequence[HeldOutComparison],
    renderer: ChatRenderer,
    connection: ServiceConnection,
    lora: LoraSpec,
    current: str | None,
    candidate: str,
    folder: Path,
    max_tokens: int,
) -> list[ComparisonGain]:
    """In the order of the comparisons; those that are longer than `max_tokens` are left out."""
    sides = [
        (entry, _render(entry.better, renderer), _render(entry.worse, renderer)) for entry in comparisons
    ]
    fitting = [
        (entry, better, worse)
        for entry, better, worse in sides
        if max(better.longest, worse.longest) <= max_tokens and better.trained_tokens and worse.trained_tokens
    ]
    if not fitting:
        raise UsageError(
            f"none of the {len(comparisons)} held-out comparisons fits {max_tokens} tokens",
            "raise --max-tokens, or rate shorter answers",
        )
    completions = [completion for _, better, worse in fitting for completion in (better, worse)]
    before = _logprobs(connection, lora, current, completions, folder)
    after = _logprobs(connection, lora, candidate, completions, folder)
    gains = [
        (new - old) / completion.trained_tokens
        for new, old, completion in zip(after, before, completions, strict=True)
    ]
    return [
        ComparisonGain(entry, gains[2 * number], gains[2 * number + 1])
        for number, (entry, _, _) in enumerate(fitting)
    ]


def _render(text: RatedAnswerText, renderer: ChatRenderer) -> RenderedCompletion:
    from hermes.training.preference.examples import render_completion

    return render_completion(text.prompt, text.completion, text.tools, renderer, text.unseen)


def _logprobs(
    connection: ServiceConnection,
    lora: LoraSpec,
    weights: str | None,
    completions: Sequence[RenderedCompletion],
    folder: Path,
) -> list[float]:
    from dataclasses import replace

    from hermes.training.preference.reference import policy_logprobs
    from hermes.training.service.client import AdapterClient
    from hermes.training.service.token_meter import TokenMeter

    with (
        closing(TokenMeter(folder)) as meter,
        AdapterClient(connection, replace(lora, start=weights, policy=None), meter) as client,
    ):
        return policy_logprobs(client, completions)
