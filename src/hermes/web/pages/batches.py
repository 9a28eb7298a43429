"""Batches and other runs of trajectories: how many, how they ended and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from starlette.responses import Response

from hermes.batch.overview import overview
from hermes.core import JSONObject
from hermes.errors import HermesError
from hermes.store import Filter
from hermes.store.rating.events import TaskAttempt
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError

_DATA = Path("data")
"""Where `hermes batch` writes by default, below the folder that the server was started in."""
_MAX_SAMPLES, _MAX_TASKS, _BINS = 20_000, 200, 10


def show(request: WebRequest) -> Response:
    with request.context.reader() as reader:
        runs = request.context.run_counts.read(reader)
    recorded = {run.run_id for run in runs}
    folders = [name for name in _batch_folders() if name not in recorded]
    return request.page("batches.html", {"runs": runs, "folders": folders})


def show_run(request: WebRequest) -> Response:
    run_id = request.path_values["run"]
    if len(run_id) > 200:
        raise PageError(404, "there is no run of this name")
    facts = _facts(run_id)
    with request.context.reader() as reader:
        totals = reader.totals_of(run_id)
        ends = reader.ends_of(run_id)
        attempts = reader.attempts(Filter(run_id=run_id)) if totals.trajectories <= _MAX_SAMPLES else []
    if not totals.trajectories and facts is None:
        raise PageError(404, f"there is no run '{run_id[:80]}'", "The page Batches lists them.")
    values: dict[str, Any] = {"run_id": run_id, "totals": totals, "ends": ends, "facts": facts}
    values["models"] = sorted({attempt.model for attempt in attempts})
    values["tools"] = _tools(run_id)
    samples = sample_grid(attempts)
    with request.context.reader() as reader:
        firsts = tuple(task_attempts[0].id for _, task_attempts in samples)
        prompts = {row.id: row.task for row in reader.summaries(Filter(ids=firsts), limit=_MAX_TASKS)}
    values["samples"] = [(prompts.get(row[0].id) or task, row) for task, row in samples]
    values["histogram"] = histogram([a.reward for a in attempts if a.reward is not None])
    return request.page("batch.html", values)


class RewardBin(NamedTuple):
    low: float
    high: float
    trajectories: int


def histogram(rewards: Sequence[float]) -> list[RewardBin]:
    """The rewards in ten bins of equal width; one if all are equal."""
    if not rewards:
        return []
    low, high = min(rewards), max(rewards)
    if low == high:
        return [RewardBin(low, high, len(rewards))]
    width = (high - low) / _BINS
    counts = Counter(min(_BINS - 1, int((reward - low) / width)) for reward in rewards)
    return [RewardBin(low + width * n, low + width * (n + 1), counts[n]) for n in range(_BINS)]


def sample_grid(attempts: Sequence[TaskAttempt]) -> list[tuple[str, list[TaskAttempt]]]:
    """The tasks in their order, each with its samples."""
    tasks: dict[str, list[TaskAttempt]] = {}
    for attempt in attempts:
        tasks.setdefault(attempt.task, []).append(attempt)
    return list(tasks.items())[:_MAX_TASKS]


def _tools(run_id: str) -> str:
    """The tools that the run was offered, by its run.json."""
    if run_id not in _batch_folders():
        return ""
    try:
        spec = json.loads((_DATA / run_id / "run.json").read_text("utf-8"))
    except (OSError, ValueError):
        return ""
    toolsets = spec.get("toolsets")
    return str(spec.get("distribution") or (", ".join(toolsets) if toolsets else "the default ones"))


def _batch_folders() -> list[str]:
    return sorted(path.parent.name for path in _DATA.glob("*/run.json"))


def _facts(run_id: str) -> JSONObject | None:
    """The run's own books, if its folder is here: a name is looked up, never joined to a path."""
    if run_id not in _batch_folders():
        return None
    try:
        return overview(_DATA / run_id)
    except HermesError as error:
        return {"problem": error.message}


ROUTES = (("GET", "/batches", show), ("GET", "/batches/{run:str}", show_run))
