"""One run: its record, its processes, its health, its checkpoints, its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hermes.core import JSONObject
from hermes.errors import HermesError, UsageError
from hermes.rl.checks.doctor import RECENT, Cause, diagnose
from hermes.rl.results import environment_problem, saved_checkpoints
from hermes.rl.run import CRASH_EVENT, RlRun
from hermes.training.monitor.incidents.alerts import Alert
from hermes.training.monitor.incidents.starts import TrainerStart, read_starts
from hermes.training.monitor.series import RunSeries
from hermes.web.runs.configs import read_config
from hermes.web.runs.listing import RunRow, is_run, read_run

_LOG_LINES = 12
_LISTED = 5


@dataclass(frozen=True, slots=True)
class RunDetail:
    row: RunRow
    folder: Path
    processes: dict[str, str]
    restarts: dict[str, int]
    events: tuple[JSONObject, ...]
    """Oldest first."""
    log_lines: dict[str, list[str]]
    checkpoints: list[dict[str, Any]]
    causes: list[Cause]
    config: dict[str, str]
    """Dotted field → value, as text."""
    marks: list[RunMark]
    alerts: list[Alert]


def find_folder(home: Path, run_id: str) -> Path:
    """UsageError for anything but the name of a run: a name is looked up, never joined to a path."""
    runs = home / "runs"
    names = [path.name for path in runs.iterdir() if is_run(path)] if runs.is_dir() else []
    matches = [name for name in names if name == run_id] or [
        name for name in names if run_id and name.startswith(run_id)
    ]
    if len(matches) != 1:
        if matches:
            listing = ", ".join(sorted(matches)[:_LISTED])
            raise UsageError(f"several runs begin with '{run_id[:80]}': {listing}", "write more of the name")
        raise UsageError(f"there is no run '{run_id[:80]}'", "'hermes web' lists them on its page Runs.")
    return runs / matches[0]


def read_detail(home: Path, folder: Path, series: RunSeries) -> RunDetail:
    row, checkpoints = read_run(home, folder.name), read_checkpoints(home, folder)
    processes: dict[str, str] = {}
    restarts: dict[str, int] = {}
    events: tuple[JSONObject, ...] = ()
    logs: dict[str, list[str]] = {}
    if row.supervised:
        run = RlRun(home, folder.name)
        status = run.status()
        processes = {name: process.describe() for name, process in status.processes.items()}
        restarts = {name: entry.starts - 1 for name, entry in status.processes.items() if entry.starts > 1}
        events = status.events
        logs = {name: run.last_lines(name, _LOG_LINES) for name in (*status.processes, "supervisor")}
    judged = row.kind == "rl" or row.state == "failed"
    rows = [entry for entry in series.recent(RECENT) if entry.get("step")]
    problem = environment_problem(run) if row.supervised else None
    causes = diagnose(rows, row.state, row.reason, problem) if judged else []
    return RunDetail(
        row,
        folder,
        processes,
        restarts,
        events,
        {name: lines for name, lines in logs.items() if lines},
        checkpoints,
        causes,
        read_config(folder),
        find_marks(series, checkpoints, read_starts(folder), events),
        series.alerts,
    )


def read_marks(home: Path, folder: Path, series: RunSeries) -> list[RunMark]:
    """The marks of a run's curves; a damaged status has none."""
    run = RlRun(home, folder.name)
    try:
        events = run.status().events
    except HermesError:
        events = ()
    return find_marks(series, read_checkpoints(home, folder), read_starts(folder), events)


def read_checkpoints(home: Path, folder: Path) -> list[dict[str, Any]]:
    try:
        return saved_checkpoints(RlRun(home, folder.name))
    except (ValueError, KeyError, TypeError, IndexError):
        return []


class RunMark(NamedTuple):
    step: int
    kind: str
    """checkpoint, resume, crash or alert."""
    text: str
    metric: str = ""
    """The metric that an alert is about; its mark is on the curves of this metric only."""


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
