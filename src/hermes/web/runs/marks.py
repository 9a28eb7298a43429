"""Marks on the curves of a run: checkpoints, resumes, crashes, alerts, each at the step it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hermes.core import JSONObject
from hermes.rl.run import CRASH_EVENT
from hermes.training.monitor.incidents.starts import TrainerStart
from hermes.web.runs.metrics import RunSeries


class RunMark(NamedTuple):
    step: int
    kind: str
    """checkpoint, resume, crash or alert."""
    text: str
    metric: str = ""
    """That an alert is about; its mark is on the curves of this metric only."""


KINDS = ("checkpoint", "resume", "crash", "alert")


def find_marks(
    series: RunSeries,
    checkpoints: Sequence[dict[str, Any]],
    starts: Sequence[TrainerStart],
    events: Sequence[JSONObject],
) -> list[RunMark]:
    """In the order of steps. `events`: of the run's supervisor.

    After a crash the steps since the checkpoint are made again: it is marked where the curve goes on.
    """
    saved = [
        RunMark(entry["step"], "checkpoint", "best checkpoint" if entry["best"] else "checkpoint")
        for entry in checkpoints
    ]
    resumed = [
        RunMark(
            start.step,
            "crash" if start.crashed else "resume",
            f"continued from here after {start.after}"
            if start.crashed
            else f"resumed; it had ended: {start.after}",
        )
        for start in starts
        if start.after is not None
    ]
    trainer_starts = [start.at_ms for start in starts]
    crashed = [
        RunMark(series.step_at(event["at_ms"]), "crash", str(event["text"]))
        for event in events
        if event.get("kind") == CRASH_EVENT and not _recorded_by_trainer(event, trainer_starts)
    ]
    alerts = [RunMark(alert.step, "alert", alert.sentence(), alert.rule.metric) for alert in series.alerts]
    return sorted((*saved, *resumed, *crashed, *alerts), key=lambda mark: (mark.step, KINDS.index(mark.kind)))


def _recorded_by_trainer(event: JSONObject, starts_ms: Sequence[int]) -> bool:
    """Whether the trainer crashed and was started again, which its own record has with the step."""
    return str(event["text"]).startswith("trainer ") and any(at_ms > event["at_ms"] for at_ms in starts_ms)
