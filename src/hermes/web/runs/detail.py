"""One run: its record, its processes, its health, its checkpoints, its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.config import yaml_file
from hermes.core import JSONObject
from hermes.disk.files import read_text
from hermes.errors import HermesError, UsageError
from hermes.rl.checks.doctor import Cause, diagnose
from hermes.rl.results import saved_checkpoints
from hermes.rl.run import RlRun
from hermes.web.runs.listing import RunRow, is_run, read_run

_LOG_LINES = 12


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


def find_folder(home: Path, run_id: str) -> Path:
    """UsageError for anything but the name of a run: a name is looked up, never joined to a path."""
    runs = home / "runs"
    names = [path.name for path in runs.iterdir() if is_run(path)] if runs.is_dir() else []
    matches = [name for name in names if name == run_id] or [
        name for name in names if run_id and name.startswith(run_id)
    ]
    if len(matches) != 1:
        problem = "several runs begin with" if matches else "there is no run"
        raise UsageError(f"{problem} '{run_id[:80]}'", "The page Runs lists them.")
    return runs / matches[0]


def read_detail(home: Path, folder: Path, rows: list[dict[str, Any]]) -> RunDetail:
    row = read_run(home, folder.name)
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
    causes = diagnose(rows, row.state, row.reason) if row.kind == "rl" or row.state == "failed" else []
    return RunDetail(
        row,
        folder,
        processes,
        restarts,
        events,
        {name: lines for name, lines in logs.items() if lines},
        _checkpoints(home, folder),
        causes,
        read_config(folder),
    )


def read_config(folder: Path) -> dict[str, str]:
    """The configuration of a run, flat: `config.yaml` of an RL run, of any other the settings it recorded."""
    text = read_text(folder / "config.yaml")
    if text is not None:
        try:
            return flatten(yaml_file.parse(text, "config.yaml").data)
        except HermesError as error:
            return {"config.yaml": error.message}
    text = read_text(folder / "training.json")
    try:
        state = json.loads(text) if text else {}
    except ValueError as error:
        return {"training.json": str(error)}
    return flatten(state.get("settings") or {})


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
            flat |= flatten(value[0], f"{name}.")
        else:
            flat[name] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat


def differences(configs: Mapping[str, Mapping[str, str]]) -> tuple[list[tuple[str, list[str | None]]], int]:
    """The fields that differ, each with its values in the order of the runs; and how many are equal."""
    names = sorted({name for config in configs.values() for name in config})
    rows = [(name, [config.get(name) for config in configs.values()]) for name in names]
    differing = [(name, values) for name, values in rows if len(set(values)) > 1]
    return differing, len(rows) - len(differing)


def _checkpoints(home: Path, folder: Path) -> list[dict[str, Any]]:
    try:
        return saved_checkpoints(RlRun(home, folder.name))
    except (ValueError, KeyError, TypeError, IndexError):
        return []
