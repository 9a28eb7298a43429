"""Ends a run that gets only batches it cannot learn from, with the reason.

Batches that cannot be trained on are counted in a row. Batches without signal, where all scores within each
group are equal, also occur in healthy runs: they count only until the first update, and at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from types import MappingProxyType

from hermes.core.stall_guard import StallGuard
from hermes.errors import HermesError
from hermes.training.data.batch import TOO_LONG, TOO_OLD, TrainBatch

_UNTRAINABLE = "untrainable"
_LIMIT = 3
"""Untrainable batches in a row."""
_OLD_LIMIT = 10
"""The same if rollouts are merely too old: a queue may contain several such batches."""
_NO_SIGNAL_LIMIT = 25
"""Batches without signal before the first update."""
_HINT = "environments must sample this run's policy from a server that returns token ids and logprobs"
_HINTS: Mapping[str, str] = MappingProxyType(
    {
        TOO_LONG: "raise --max-tokens (max_token_trainer_length), or make rollouts shorter",
        TOO_OLD: "environments must sample the newest weights; or raise --max-staleness",
    }
)


class BatchGuard:
    """`has_updates`: whether the run has made updates before."""

    def __init__(self, has_updates: bool = False) -> None:
        self._stall = StallGuard()
        self._rewards: list[float] = []
        """Mean scores of the batches without signal."""
        self._has_updates = has_updates

    def check(self, batch: TrainBatch) -> None:
        """HermesError if the run is to end."""
        self._has_updates = self._has_updates or bool(batch.sequences)
        if not self._has_updates and not batch.untrainable:
            self._rewards.append(batch.metrics.get("reward/mean", 0.0))
            if len(self._rewards) >= _NO_SIGNAL_LIMIT:
                self.check_any_signal()
        if not batch.untrainable:
            self._stall.record_useful()
            return
        self._stall.record_useless(_UNTRAINABLE)
        limit = _OLD_LIMIT if set(batch.left_out) == {TOO_OLD} else _LIMIT
        stall = self._stall.find_stall({_UNTRAINABLE: limit})
        if stall is None:
            return
        reasons = batch.left_out.most_common(3)
        summary = "; ".join(f"{count} sequences: {reason}" for reason, count in reasons)
        raise HermesError(
            f"{stall.count} batches in a row had nothing to train on ({summary})",
            _HINTS.get(reasons[0][0], _HINT),
        )

    def check_any_signal(self) -> None:
        """HermesError if the run has had batches, and none of them had signal."""
        if self._has_updates or not self._rewards:
            return
        mean = fmean(self._rewards)
        raise HermesError(
            f"no signal: in all {len(self._rewards)} batches the scores within each group were equal "
            f"(mean reward {mean:.3g})",
            "where the tasks are too hard: a warm start by SFT, a shaped reward, larger groups; "
            "where they are too easy: others",
        )
