"""Batches that teach nothing: a run that gets nothing else is ended with the reason.

Those that cannot be trained on count in a row. Those without signal, where within each group all scores are
equal, are common in a good run, too: they count only until the first update, and at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from types import MappingProxyType

from hermes.errors import HermesError
from hermes.training.data.batch import TOO_LONG, TOO_OLD, TrainBatch

_LIMIT = 3
"""In a row."""
_OLD_LIMIT = 10
"""The same, where rollouts are merely too old: a queue may hold some of these."""
_SILENT_LIMIT = 25
"""Batches without signal before the first update."""
_HINT = "environments must sample this run's policy from a server that gives ids and logprobs"
_HINTS: Mapping[str, str] = MappingProxyType(
    {
        TOO_LONG: "raise --max-tokens (max_token_trainer_length), or let environments take fewer",
        TOO_OLD: "environments must follow the newest weights; or raise --max-staleness",
    }
)


class StallGuard:
    """Counts them. `learned`: whether the run has made updates before."""

    def __init__(self, learned: bool = False) -> None:
        self._in_a_row = 0
        self._rewards: list[float] = []
        """Mean scores of the batches without signal."""
        self._learned = learned

    def judge(self, prepared: TrainBatch) -> None:
        """HermesError ends the run."""
        self._learned = self._learned or bool(prepared.items)
        if not self._learned and not prepared.hopeless:
            self._rewards.append(prepared.metrics.get("reward/mean", 0.0))
            if len(self._rewards) >= _SILENT_LIMIT:
                self.conclude()
        self._in_a_row = self._in_a_row + 1 if prepared.hopeless else 0
        if self._in_a_row < (_OLD_LIMIT if set(prepared.left_out) == {TOO_OLD} else _LIMIT):
            return
        found = prepared.left_out.most_common(3)
        why = "; ".join(f"{count} sequences: {reason}" for reason, count in found)
        raise HermesError(
            f"{self._in_a_row} batches in a row had nothing to train on ({why})",
            _HINTS.get(found[0][0], _HINT),
        )

    def conclude(self) -> None:
        """HermesError if there never was anything to learn from."""
        if self._learned or not self._rewards:
            return
        mean = fmean(self._rewards)
        raise HermesError(
            f"no signal: in all {len(self._rewards)} batches the scores within each group were equal "
            f"(mean reward {mean:.3g})",
            "where the tasks are too hard: a warm start by SFT, a shaped reward, larger groups; "
            "where they are too easy: others",
        )
