"""The table of runs: RL runs with their supervisor's record, and runs of `hermes train`, in one form.

Only files are read: `status.json`, `training.json`, `config.yaml` and the end of `metrics.jsonl`. A run whose
trainer is dead is shown as what its files say, and as lost if they say that it runs.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hermes.core import JSONObject, parse_object
from hermes.disk.files import read_text
from hermes.errors import HermesError
from hermes.rl.budget import cost_usd
from hermes.rl.process import read_tail
from hermes.rl.run import RlRun, RunState, RunStatus
from hermes.training.monitor.machine_card import read_machines
from hermes.training.service.token_meter import read_tokens
from hermes.web.runs.configs import config_digest

_QUIET_S = 120.0
_MISSED_BEATS = 3
"""A trainer that has not written for this many of its longest steps is lost."""
_TAIL_ROWS = 20
LOST = "lost"
_ACTIVE = frozenset({"pending", "starting", "running", "stopping"})


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of what a run uses and what it was made from."""

    tokens_per_s: float | None = None
    """Trained tokens a second, over the last steps; the wait for batches counts."""
    memory_bytes: float | None = None
    """The engine's peak."""
    cost_usd: float | None = None
    """At the service's price; None: it has none, as a run's own engine, or none is set."""
    commit: str | None = None
    """The commit of the code that trained it last."""
    digest: str | None = None
    """The digest of its configuration, without what differs between two starts of the same one."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of the table."""

    run_id: str
    kind: str
    """rl, sft, dpo, …"""
    state: str
    """A RunState, or 'lost': its files say that it runs, and no process does."""
    title: str
    """The environment, or what is trained on."""
    model: str
    step: int
    total_steps: int | None
    metrics: dict[str, float]
    """The metrics of the newest step."""
    started_at_ms: int | None
    updated_at_ms: int | None
    """When the newest step was written."""
    reason: str | None = None
    """Why it ended, unless it completed."""
    facts: RunFacts = RunFacts()
    note: str = ""
    """The words of the person who started it."""

    @property
    def active(self) -> bool:
        return self.state in _ACTIVE

    @property
    def supervised(self) -> bool:
        """Whether it has a supervisor, so that it can be stopped from here."""
        return self.kind == "rl"


def list_runs(home: Path) -> list[RunRow]:
    """Newest first. A run whose files are damaged is listed as such."""
    folder = home / "runs"
    if not folder.is_dir():
        return []
    rows = [read_run(home, path.name) for path in folder.iterdir() if is_run(path)]
    return sorted(rows, key=lambda row: (row.started_at_ms or 0, row.run_id), reverse=True)


def is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("status.json", "training.json", "metrics.jsonl"))


def read_run(home: Path, run_id: str) -> RunRow:
    folder = home / "runs" / run_id
    rows = tail_rows(folder / "metrics.jsonl")
    if (folder / "status.json").is_file():
        return _supervised_row(home, run_id, rows)
    return _trained_row(folder, rows)


def tail_rows(path: Path) -> list[dict[str, Any]]:
    """The last rows of a metrics file; an incomplete line is left out."""
    rows = []
    for line in read_tail(path).splitlines()[-_TAIL_ROWS:]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def _supervised_row(home: Path, run_id: str, rows: list[dict[str, Any]]) -> RunRow:
    run = RlRun(home, run_id)
    try:
        status, config = run.status(), run.config()
    except HermesError as error:
        return _broken_row(run_id, rows, error.message)
    return RunRow(
        run_id,
        "rl",
        _state(status),
        config.run.environment,
        config.run.model,
        rows[-1]["step"] if rows else 0,
        config.env.total_steps or None,
        _numbers(rows),
        status.started_at_ms or config.run.created_at_ms,
        _updated_ms(rows),
        status.reason,
        _facts(run.folder, rows, config.run.price, config.model_dump(mode="json", exclude_unset=True)),
        config.run.note,
    )


def _state(status: RunStatus) -> str:
    if status.state.ended or status.state is RunState.PENDING:
        return status.state.value
    alive = status.supervisor is not None and status.supervisor.alive()
    return status.state.value if alive else LOST


def _trained_row(folder: Path, rows: list[dict[str, Any]]) -> RunRow:
    text = read_text(folder / "training.json")
    try:
        state: JSONObject = parse_object(text) if text else {}
    except ValueError as error:
        return _broken_row(folder.name, rows, f"training.json is damaged: {error}")
    settings: JSONObject = state.get("settings") or {}
    finished = state.get("finished")
    kind = str(state.get("kind") or folder.name.partition("-")[0])
    return RunRow(
        folder.name,
        kind,
        "completed" if finished else _liveness(rows),
        str(settings.get("dataset") or settings.get("data") or settings.get("environment") or kind),
        str(settings.get("base_model") or settings.get("model") or ""),
        rows[-1]["step"] if rows else 0,
        settings.get("steps"),
        _numbers(rows),
        int(folder.stat().st_ctime * 1000),
        _updated_ms(rows),
        str(finished) if finished and finished != "completed" else None,
        _facts(folder, rows, None, settings),
    )


def _liveness(rows: list[dict[str, Any]]) -> str:
    """A trainer without a supervisor: judged by when it last wrote."""
    ends_s = [float(row["time_s"]) for row in rows if "time_s" in row]
    if not ends_s:
        return RunState.PENDING.value
    longest_s = max((later - before for before, later in pairwise(ends_s)), default=0.0)
    quiet_s = time.time() - ends_s[-1]
    return "running" if quiet_s < max(_QUIET_S, _MISSED_BEATS * longest_s) else LOST


def _broken_row(run_id: str, rows: list[dict[str, Any]], reason: str) -> RunRow:
    step = rows[-1]["step"] if rows else 0
    return RunRow(run_id, "?", "damaged", "", "", step, None, _numbers(rows), None, _updated_ms(rows), reason)


def _numbers(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The newest value of every metric: not every step evaluates."""
    newest: dict[str, float] = {}
    for row in rows:
        newest |= {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
    return newest


def _facts(
    folder: Path, rows: list[dict[str, Any]], price: JSONObject | None, config: JSONObject
) -> RunFacts:
    try:
        commit = next((card.commit for card in reversed(read_machines(folder))), None)
        cost = cost_usd(read_tokens(folder), price) if price else None
    except (HermesError, KeyError, TypeError):
        commit, cost = None, None
    memory = _numbers(rows).get("optim/peak_bytes")
    return RunFacts(_tokens_per_s(rows), memory, cost, commit, config_digest(config))


def _tokens_per_s(rows: list[dict[str, Any]]) -> float | None:
    timed = [row for row in rows if "time_s" in row and "data/trained_tokens" in row]
    if len(timed) < 2:
        return None
    took_s = float(timed[-1]["time_s"]) - float(timed[0]["time_s"])
    tokens = sum(float(row["data/trained_tokens"]) for row in timed[1:])
    return tokens / took_s if took_s > 0 else None


def _updated_ms(rows: list[dict[str, Any]]) -> int | None:
    return int(float(rows[-1]["time_s"]) * 1000) if rows and "time_s" in rows[-1] else None
