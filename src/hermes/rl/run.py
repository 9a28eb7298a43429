"""A run's durable record: a folder with the resolved configuration and a status that is always true.

`status.json` is written by the run's supervisor alone, whole or not at all. What it says of processes is
checked against the machine whenever it is told, so a record whose writer was killed is not believed where it
is wrong.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from hermes.config.paths import logs_dir
from hermes.core import JSON, JSONObject
from hermes.core.files import atomic_write, read_text
from hermes.errors import HermesError, UsageError
from hermes.rl.supervise.processes import ProcessId

PARTS = ("api", "engine", "trainer", "env")
"""In the order they are started."""
_EVENTS_KEPT = 50
_NOW = "now"
_RUN = "run:"
"""Before a run's id, where a model's name is expected."""
_TAIL_BYTES = 16_384
"""Of a log or of the metrics, where only the end matters: several rows."""


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
class PartStatus:
    """One process of a run."""

    process: ProcessId | None = None
    """The last one that was started."""
    ready: bool = False
    exit_code: int | None = None
    """Negative: the signal that ended it. None: it runs, was never started, or nobody saw it end."""
    starts: int = 0

    def to_json(self) -> JSONObject:
        return {
            "process": self.process.to_json() if self.process else None,
            "ready": self.ready,
            "exit_code": self.exit_code,
            "starts": self.starts,
        }

    @classmethod
    def from_json(cls, data: JSONObject) -> PartStatus:
        process = ProcessId.from_json(data["process"])
        return cls(process, data["ready"], data["exit_code"], data["starts"])

    def describe(self) -> str:
        """running, not started, or how it ended; looks at the machine."""
        if self.process is None:
            return "not started"
        if self.process.alive():
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
    """Why the run ended, where it did not simply complete."""
    ending: RunState | None = None
    """The state that a run which is stopping will have."""
    started_at_ms: int = 0
    ended_at_ms: int | None = None
    supervisor: ProcessId | None = None
    parts: dict[str, PartStatus] = field(default_factory=dict)
    events: tuple[JSONObject, ...] = ()
    """What happened, oldest first: {at_ms, text}."""

    def noted(self, text: str) -> RunStatus:
        event: JSONObject = {"at_ms": now_ms(), "text": text}
        return replace(self, events=(*self.events, event)[-_EVENTS_KEPT:])

    def to_json(self) -> JSONObject:
        return {
            "state": self.state.value,
            "reason": self.reason,
            "ending": self.ending.value if self.ending else None,
            "started_at_ms": self.started_at_ms,
            "ended_at_ms": self.ended_at_ms,
            "supervisor": self.supervisor.to_json() if self.supervisor else None,
            "parts": {name: part.to_json() for name, part in self.parts.items()},
            "events": list(self.events),
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
            {name: PartStatus.from_json(part) for name, part in data["parts"].items()},
            tuple(data["events"]),
        )


@dataclass(frozen=True, slots=True)
class RlRun:
    """Where a run's things are. Nothing here is read until it is asked for."""

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
        """Its presence asks the supervisor to end the run."""
        return self.folder / "stop"

    def ask_to_stop(self, now: bool = False) -> None:
        """`now`: without the step in progress, and what was trained since the last checkpoint."""
        if now or not self.stop_path.exists():
            self.stop_path.write_text(_NOW if now else "")

    def in_a_hurry(self) -> bool:
        return read_text(self.stop_path) == _NOW

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    def log_path(self, part: str) -> Path:
        return logs_dir(self.home) / "rl_training" / f"{part}_{self.run_id}.log"

    def config(self) -> JSONObject:
        """The resolved configuration."""
        from hermes.config import yaml_file

        return yaml_file.parse(read_text(self.config_path) or "", str(self.config_path)).data

    def toolsets(self) -> list[str] | None:
        """What its policy is trained with; None: nobody wrote it down."""
        toolsets: list[str] | None = self.config()["run"].get("toolsets")
        return toolsets

    def status(self) -> RunStatus:
        text = read_text(self.status_path)
        if text is None:
            return RunStatus()
        try:
            return RunStatus.from_json(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise HermesError(
                f"{self.status_path} is damaged: {error}", "move the run's folder aside"
            ) from error

    def write_status(self, status: RunStatus) -> None:
        atomic_write(self.status_path, json.dumps(status.to_json(), indent=1))

    def last_lines(self, part: str, count: int = 12) -> list[str]:
        """The end of a part's log, without what a terminal would act on."""
        from hermes.safety.text import printable

        lines = _tail(self.log_path(part), _TAIL_BYTES).splitlines()
        return [printable(line) for line in lines if line.strip()][-count:]


def find_run(home: Path, run_id: str) -> RlRun:
    """The run of that id, or of the only id that begins so."""
    matches = [run for run in all_runs(home) if run_id and run.run_id.startswith(run_id)]
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
    raise UsageError(f"there is no run '{run_id}'", "'hermes rl runs' lists them")


def named_run(home: Path, model: str | None) -> RlRun | None:
    """The run that the model's name `run:ID` means; None where it is another name."""
    return find_run(home, model.removeprefix(_RUN)) if model and model.startswith(_RUN) else None


def all_runs(home: Path) -> list[RlRun]:
    """Newest first."""
    folder = home / "runs"
    found = [path for path in folder.iterdir() if (path / "status.json").exists()] if folder.exists() else []
    runs = [RlRun(home, path.name) for path in found]
    return sorted(runs, key=lambda run: run.status().started_at_ms, reverse=True)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a metrics.jsonl; the torn last line of a killed trainer is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    yield from _rows(text)


def _rows(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            row: JSON = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def last_step(run: RlRun) -> int:
    """The newest step that the metrics tell of; 0 before the first. They are in order: the end will do."""
    rows = list(_rows(_tail(run.metrics_path, _TAIL_BYTES))) or list(read_metrics(run.metrics_path))
    return max((int(row.get("step", 0)) for row in rows), default=0)


def _tail(path: Path, size: int) -> str:
    """The last bytes of a file; nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def now_ms() -> int:
    return time.time_ns() // 1_000_000
