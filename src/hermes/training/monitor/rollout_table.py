"""A table of sampled rollouts of a batch: what the policy reads and writes, from the worst score to the best.

The text is decoded from the tokens that are trained on, and known secrets are redacted: the table goes to W&B
or trackio. Rows are chosen by score alone, so the same batch gives the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.core.json import JSONObject
from hermes.core.sequence import TrainSequence, from_group

ROLLOUTS = "rollouts"
"""The table's name at the sinks."""
COLUMNS = ("step", "environment", "kind", "score", "success", "stop_reason", "tokens", "prompt", "answer")
_ROWS = 8
_MAX_CHARACTERS = 4000
"""Limit of a cell; a longer text keeps its beginning and its end."""


@dataclass(frozen=True, slots=True)
class RolloutTable:
    """Makes the tables of a run."""

    decode: Callable[[Sequence[int]], str]
    redact: Callable[[str], str]
    every: int
    """Steps between two tables; the first step has one too."""

    def is_due(self, step: int) -> bool:
        return step == 1 or step % self.every == 0

    def rows(self, groups: Sequence[JSONObject], step: int) -> list[list[Any]]:
        """One row for each of up to eight rollouts, in the order of COLUMNS, by rising score."""
        rollouts: list[tuple[str | None, TrainSequence]] = []
        for group in map(from_group, groups):
            first_parts = {sequence.rollout.id: sequence for sequence in reversed(group.sequences)}
            rollouts += [(group.environment, sequence) for sequence in first_parts.values()]
        rollouts.sort(key=lambda entry: (entry[1].rollout.score, entry[1].tokens))
        count = min(_ROWS, len(rollouts))
        chosen = [rollouts[round(index * (len(rollouts) - 1) / max(1, count - 1))] for index in range(count)]
        return [self._row(environment, sequence, step) for environment, sequence in chosen]

    def _row(self, environment: str | None, sequence: TrainSequence, step: int) -> list[Any]:
        rollout, start = sequence.rollout, sequence.loss_mask.index(True)
        return [
            step,
            environment,
            rollout.kind,
            rollout.score,
            rollout.success,
            rollout.stop_reason,
            sequence.trained_tokens,
            self._text(sequence.tokens[:start]),
            self._text(sequence.tokens[start:]),
        ]

    def _text(self, tokens: Sequence[int]) -> str:
        text = self.redact(self.decode(list(tokens)))
        half = _MAX_CHARACTERS // 2
        return text if len(text) <= _MAX_CHARACTERS else f"{text[:half]} … {text[-half:]}"
