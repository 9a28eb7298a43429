"""Batches and other runs of trajectories: how many, how they ended and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.responses import Response

from hermes.batch.overview import overview
from hermes.core import JSONObject
from hermes.errors import HermesError
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError

_DATA = Path("data")
"""Where `hermes batch` writes by default, below the folder that the server was started in."""


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
    if not totals.trajectories and facts is None:
        raise PageError(404, f"there is no run '{run_id[:80]}'", "The page Batches lists them.")
    values: dict[str, Any] = {"run_id": run_id, "totals": totals, "ends": ends, "facts": facts}
    return request.page("batch.html", values)


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
