"""The record of an RL run: a folder with its resolved configuration and its status.

`status.json` is written only by the run's supervisor, atomically. Whether a process is alive is checked
against the machine whenever the status is shown, so that the record of a supervisor that was killed is not
trusted blindly.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from hermes.config.paths import logs_dir
from hermes.core import JSONObject, parse_object
from hermes.core.clock import now_ms
from hermes.core.names import did_you_mean, nearest
from hermes.disk.files import atomic_write, read_text
from hermes.errors import HermesError, UsageError
from hermes.rl.process import ProcessId, last_lines, read_tail
from hermes.rl.run_config import RunConfig

_logger = logging.getLogger(__name__)
PROCESS_NAMES = ("api", "engine", "trainer", "env")
"""In starting order."""
_MAX_EVENTS = 50
_MAX_CRASHES = 200
"""How many crashes are kept of events that are older than those."""
CRASH_EVENT = "crash"
"""The kind of an event that is the end of a process before its work was done."""
_NOW = "now"


class RunState(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (RunState.STOPPED, RunState.COMPLETED, RunState.FAILED)


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of a run."""

    process_id: ProcessId | None = None
    """The process that was started last."""
    ready: bool = False
    exit_code: int | None = None
    """Negative: the signal that killed it. None: it runs, was never started, or its exit code is unknown."""
    starts: int = 0

    def to_json(self) -> JSONObject:
        return {
            "process": self.process_id.to_json() if self.process_id else None,
            "ready": self.ready,
            "exit_code": self.exit_code,
            "starts": self.starts,
        }

    @classmethod
    def from_json(cls, data: JSONObject) -> ProcessStatus:
        process_id = ProcessId.from_json(data["process"])
        return cls(process_id, data["ready"], data["exit_code"], data["starts"])

    def describe(self) -> str:
        """running, starting, not started, or how it exited; checks the machine."""
        if self.process_id is None:
            return "not started"
        if self.process_id.alive():
            return "running" if self.ready else "starting"
        if self.exit_code is None:
            return "exited"
        if self.exit_code < 0:
            return f"killed (signal {-self.exit_code})"
        return f"exited ({self.exit_code})"


@dataclass(frozen=True, slots=True)
class RunStatus:
    state: RunState = RunState.PENDING
    reason: str | None = None
    """Why the run ended, unless it completed."""
    ending: RunState | None = None
    """The final state of a run that is stopping."""
    started_at_ms: int = 0
    ended_at_ms: int | None = None
    supervisor: ProcessId | None = None
    processes: dict[str, ProcessStatus] = field(default_factory=dict)
    events: tuple[JSONObject, ...] = ()
    """Oldest first: {at_ms, text}, and {kind} of a crash."""
    waiting: str | None = None
    """The condition that the run waits for before it goes on (room on the disk); None: nothing."""

    def with_event(self, text: str, kind: str | None = None) -> RunStatus:
        event: JSONObject = {"at_ms": now_ms(), "text": text, **({"kind": kind} if kind else {})}
        events = (*self.events, event)
        crashes = [older for older in events[:-_MAX_EVENTS] if older.get("kind") == CRASH_EVENT]
        return replace(self, events=(*crashes[-_MAX_CRASHES:], *events[-_MAX_EVENTS:]))

    def to_json(self) -> JSONObject:
        return {
            "state": self.state.value,
            "reason": self.reason,
            "ending": self.ending.value if self.ending else None,
            "started_at_ms": self.started_at_ms,
            "ended_at_ms": self.ended_at_ms,
            "supervisor": self.supervisor.to_json() if self.supervisor else None,
            "parts": {name: process.to_json() for name, process in self.processes.items()},
            "events": list(self.events),
            "waiting": self.waiting,
        }

    @classmethod
    def from_json(cls, data: JSONObject) -> RunStatus:
        return cls(
            RunState(data["state"]),
            data["reason"],
            RunState(data["ending"]) if data["ending"] else None,
            data["started_at_ms"],
            data["ended_at_ms"],
            ProcessId.from_json(data["supervisor"]),
            {name: ProcessStatus.from_json(process) for name, process in data["parts"].items()},
            tuple(data["events"]),
            data.get("waiting"),
        )


@dataclass(frozen=True, slots=True)
class RlRun:
    """The paths of a run. Files are read only by the methods."""

    home: Path
    run_id: str

    @property
    def folder(self) -> Path:
        return self.home / "runs" / self.run_id

    @property
    def config_path(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def status_path(self) -> Path:
        return self.folder / "status.json"

    @property
    def stop_path(self) -> Path:
        """If this file exists, the supervisor stops the run."""
        return self.folder / "stop"

    def request_stop(self, now: bool = False) -> None:
        """`now`: without finishing and saving the step in progress."""
        if now or not self.stop_path.exists():
            self.stop_path.write_text(_NOW if now else "")

    def stop_now(self) -> bool:
        """Whether the run was requested to stop without finishing the step in progress."""
        return read_text(self.stop_path) == _NOW

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    def log_path(self, process: str) -> Path:
        return logs_dir(self.home) / "rl_training" / f"{process}_{self.run_id}.log"

    def config(self) -> RunConfig:
        """The resolved configuration."""
        return RunConfig.read(self.config_path)

    def status(self) -> RunStatus:
        text = read_text(self.status_path)
        if text is None:
            return RunStatus()
        try:
            return RunStatus.from_json(parse_object(text))
        except (ValueError, KeyError, TypeError) as error:
            raise HermesError(
                f"{self.status_path} is damaged: {error}", "move the run's folder aside"
            ) from error

    def write_status(self, status: RunStatus) -> None:
        atomic_write(self.status_path, json.dumps(status.to_json(), indent=1))

    def last_lines(self, process: str, count: int = 12) -> list[str]:
        """The end of a process's log, without control characters."""
        return last_lines(self.log_path(process), count)


def find_run(home: Path, run_id: str | None) -> RlRun:
    """The run with this id, or with the only id that has this prefix; None: the newest."""
    if run_id is None:
        return newest_run(home)
    runs = all_runs(home)
    matches = [run for run in runs if run.run_id == run_id]
    matches = matches or [run for run in runs if run_id and run.run_id.startswith(run_id)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(run.run_id for run in matches)
        raise UsageError(f"several runs begin with '{run_id}': {names}", "write more of the id")
    if run_id and (home / "runs" / run_id / "training.json").is_file():
        raise UsageError(
            f"'{run_id}' is a run of hermes train, which has no supervisor and no environment",
            f"its weights: hermes rl weights {run_id}; to start from them: --set start_from={run_id}",
        )
    close = nearest(run_id, [run.run_id for run in runs])
    hint = did_you_mean(close, "'hermes rl status --all' lists them, as the agent's tool rl_list_runs does")
    raise UsageError(f"there is no run '{run_id}'", hint)


def newest_run(home: Path) -> RlRun:
    runs = all_runs(home)
    if not runs:
        raise UsageError("there is no run yet", "hermes rl start starts one")
    return runs[0]


def all_runs(home: Path) -> list[RlRun]:
    """Newest first, and last those whose status cannot be read."""
    folder = home / "runs"
    runs = [RlRun(home, path.parent.name) for path in folder.glob("*/status.json")]
    return sorted(runs, key=_started_ms, reverse=True)


def _started_ms(run: RlRun) -> int:
    try:
        return run.status().started_at_ms
    except HermesError:
        return -1


def readable_runs(home: Path) -> Iterator[RlRun]:
    """As `all_runs`, without those whose files are damaged, which a warning names."""
    for run in all_runs(home):
        try:
            run.status(), run.config()
        except HermesError as error:
            _logger.warning("the run %s is left out: %s", run.run_id, error.message)
            continue
        yield run


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics.jsonl; an incomplete last line of a killed trainer is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise HermesError(f"{path} cannot be read: {error.strerror}", "move it aside") from error
    yield from _rows(text)


def _rows(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            yield parse_object(line)
        except ValueError:
            continue


def last_step(run: RlRun) -> int:
    """The newest step in the metrics; 0 before the first. Steps are in order, so the end of the file
    suffices."""
    rows = list(_rows(read_tail(run.metrics_path))) or list(read_metrics(run.metrics_path))
    return max((int(row.get("step", 0)) for row in rows), default=0)
