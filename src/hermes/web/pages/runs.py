"""Runs: the table, one run with its curves, several overlaid, what differs between their configurations."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from itertools import chain
from typing import Any

from starlette.responses import JSONResponse, RedirectResponse, Response

from hermes.rl.run import RlRun
from hermes.store.browse.columns import sql_condition
from hermes.training.monitor.series import HIDDEN, RunSeries
from hermes.training.monitor.sinks import METRICS
from hermes.web.render.transcript import forbidden_by_step
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError
from hermes.web.runs.configs import differences, read_config
from hermes.web.runs.curves import curve, panels
from hermes.web.runs.detail import find_folder, read_detail, read_marks
from hermes.web.runs.listing import RunRow, list_runs, read_run

_MAX_OVERLAID = 10
_FIRST_PANELS = 8
_LIVE_S = 1.0
_ROLLOUTS = 64
_COMPARED = ("reward/mean", "eval/mean_reward", "eval/success_rate", "train/loss", "eval/loss")
"""Metrics whose curves are beside the differences."""


def show(request: WebRequest) -> Response:
    home = request.context.home
    # What a live page asks for again and again is read once for all of them.
    rows = request.context.live_runs.get(lambda: list_runs(home)) if request.from_script else list_runs(home)
    template = "runs_table.html" if request.from_script else "runs.html"
    rules = request.context.alert_rules()
    values = {"runs": rows, "rules": [rule.text for rule in rules], "alerts": _ongoing(request, rows)}
    return request.page(template, values)


def _ongoing(request: WebRequest, rows: list[RunRow]) -> dict[str, list[str]]:
    """By active run the alerts whose rules hold at its newest step."""
    ongoing: dict[str, list[str]] = {}
    for row in rows if request.context.alert_rules() else ():
        if row.active:
            with request.context.series(request.context.home / "runs" / row.run_id) as series:
                ongoing[row.run_id] = [alert.sentence() for alert in series.alerts if alert.ongoing]
    return ongoing


def events(request: WebRequest) -> Response:
    """Tells the page when anything in the table has changed."""
    home = request.context.home
    last_digest = ""

    def next_event() -> dict[str, Any] | None:
        nonlocal last_digest
        digest = _digest(request.context.live_runs.get(lambda: list_runs(home)))
        if digest == last_digest:
            return None
        last_digest = digest
        return {"changed": digest}

    return request.context.streams.open(next_event, _LIVE_S)


def show_run(request: WebRequest) -> Response:
    home = request.context.home
    folder = find_folder(home, request.path_values["run"])
    with request.context.series(folder) as series:
        detail = read_detail(home, folder, series)
        shown_panels = [
            (panel, _sparkline(series, panel.name) if number < _FIRST_PANELS else "")
            for number, panel in enumerate(panels(series.latest))
        ]
        newest = dict(series.latest)
    values: dict[str, Any] = {
        "detail": detail,
        "run": detail.row,
        "panels": shown_panels,
        "first_panels": _FIRST_PANELS,
        "newest": newest,
        "mark_counts": Counter(mark.kind for mark in detail.marks),
        "rules": [rule.text for rule in request.context.alert_rules()],
        "others": [row for row in list_runs(home) if row.run_id != folder.name][:20],
        "overlaid": _overlaid(request, folder.name),
    }
    return request.page("run.html", values)


def curves(request: WebRequest) -> Response:
    """The curves of up to ten runs as JSON."""
    home = request.context.home
    ids = request.texts("id")
    names = request.texts("name")
    if not 1 <= len(ids) <= _MAX_OVERLAID or len(names) > 200:
        raise PageError(400, f"{len(ids)} runs cannot be drawn", f"Give 1 to {_MAX_OVERLAID} ids.")
    smoothing = (request.integer("smooth", 90, 0, 99) or 0) / 100
    runs = []
    for run_id in ids:
        folder = find_folder(home, run_id)
        with request.context.series(folder) as series:
            chosen = names or [name for name in series.latest if name not in HIDDEN]
            lines = {name: curve(series, name, smoothing)._asdict() for name in chosen}
            marks = [mark._asdict() for mark in read_marks(home, folder, series)]
            last_step = series.last_step
        runs.append({"id": folder.name, "last": last_step, "curves": lines, "markers": marks})
    return JSONResponse({"runs": runs})


def run_events(request: WebRequest) -> Response:
    """The rows that a run appends, as they come, and its state."""
    home = request.context.home
    folder = find_folder(home, request.path_values["run"])
    last_step = request.integer("after", 0) or 0
    last_state = ""
    last_version: tuple[int, int, int] | None = None

    def next_event() -> dict[str, Any] | None:
        nonlocal last_step, last_state, last_version
        version = request.context.metrics.version(folder / METRICS)
        rows: list[dict[str, Any]] = []
        rewound = False
        if version != last_version:
            last_version = version
            with request.context.series(folder) as series:
                newest = series.last_step
                appended = series.rows_after(last_step)
            rewound = newest < last_step or appended is None
            rows = [] if rewound or appended is None else appended
            last_step = newest
        run = read_run(home, folder.name)
        if not rows and run.state == last_state and not rewound:
            return None
        last_state = run.state
        return {
            "rows": rows,
            "state": run.state,
            "step": last_step,
            "reload": rewound,
        }

    return request.context.streams.open(next_event, _LIVE_S)


def rollouts(request: WebRequest) -> Response:
    """The rollouts that were recorded while one step was made, best first."""
    folder = find_folder(request.context.home, request.path_values["run"])
    step: int = request.path_values["step"]
    with request.context.series(folder) as series:
        located, count = series.find(step), series.count
    if located is None:
        raise PageError(404, f"run {folder.name} has no step {step}", f"It has made {count} steps.")
    row, begin_s = located
    end_ms, begin_ms = int(float(row.get("time_s", 0)) * 1000), int(begin_s * 1000)
    query = f"run={folder.name} created_at_ms>{begin_ms} created_at_ms<={end_ms}"
    with request.context.reader() as reader:
        conditions = [
            sql_condition("run", "=", folder.name),
            sql_condition("created_at_ms", ">", str(begin_ms)),
            sql_condition("created_at_ms", "<=", str(end_ms)),
        ]
        listed = reader.page(conditions, limit=_ROLLOUTS).rows
        listed.sort(
            key=lambda entry: -(entry.summary.reward if entry.summary.reward is not None else float("-inf"))
        )
        forbidden = {
            entry.summary.id: [*chain(*forbidden_by_step(reader.rewards(entry.summary.id)).values())]
            for entry in listed
        }
    values = {"run_id": folder.name, "step": step, "rows": listed, "row": row, "query": query}
    values["forbidden"] = forbidden
    values["part"] = request.from_script
    return request.page("rollouts_part.html" if request.from_script else "rollouts.html", values)


def diff(request: WebRequest) -> Response:
    ids = request.texts("id")
    if not 2 <= len(ids) <= _MAX_OVERLAID:
        raise PageError(400, f"{len(ids)} runs cannot be compared", f"Choose 2 to {_MAX_OVERLAID}.")
    folders = [find_folder(request.context.home, run_id) for run_id in ids]
    configs = {folder.name: read_config(folder) for folder in folders}
    differing, equal = differences(configs)
    names: set[str] = set()
    for folder in folders:
        with request.context.series(folder) as series:
            names.update(series.latest)
    compared = [panel for panel in panels(names) if panel.name in _COMPARED]
    values = {"names": list(configs), "differing": differing, "equal": equal, "panels": compared}
    return request.page("runs_diff.html", values)


def stop(request: WebRequest) -> Response:
    """Asks the supervisor to stop; the page shows how it goes. A run that lost its supervisor gets one, which
    stops it, in a job: nothing waits here."""
    folder = find_folder(request.context.home, request.path_values["run"])
    run = RlRun(request.context.home, folder.name)
    if not run.status_path.is_file():
        raise PageError(
            409, f"{folder.name} has no supervisor", "End the process of 'hermes train' that makes it."
        )
    status = run.status()
    if status.state.ended:
        raise PageError(409, f"run {folder.name} has ended: {status.state.value}")
    now = request.field("now") == "1"
    if status.supervisor is None or not status.supervisor.alive():
        command = ("rl", "stop", folder.name, *(["--now"] if now else []))
        job = request.context.jobs.start(f"Stop of {folder.name}", command, f"/runs/{folder.name}")
        return RedirectResponse(f"/jobs/{job.job_id}", 303)
    run.request_stop(now=now)
    return RedirectResponse(f"/runs/{folder.name}", 303)


def weights(request: WebRequest) -> Response:
    """Writes the weights to the run's folder, as `hermes rl weights` does."""
    folder = find_folder(request.context.home, request.path_values["run"])
    form = request.field("format") or "peft"
    if form not in ("peft", "merged", "gguf"):
        raise PageError(400, f"weights cannot be written as '{form[:40]}'", "peft, merged or gguf.")
    step = request.form_integer("step")
    arguments: tuple[str, ...] = ("rl", "weights", folder.name, "--format", form)
    arguments += ("--step", str(step)) if step is not None else ()
    job = request.context.jobs.start(f"Weights of {folder.name}", arguments, f"/runs/{folder.name}")
    return RedirectResponse(f"/jobs/{job.job_id}", 303)


def _overlaid(request: WebRequest, run_id: str) -> list[str]:
    ids = [value for value in request.texts("with") if value and value != run_id]
    return [find_folder(request.context.home, value).name for value in ids][: _MAX_OVERLAID - 1]


def _sparkline(series: RunSeries, name: str) -> str:
    """The points of an SVG polyline in a box of 300 by 100, for browsers without JavaScript."""
    points = curve(series, name)
    if len(points.steps) < 2:
        return ""
    low, high = min(points.smooth), max(points.smooth)
    first, last = points.steps[0], points.steps[-1]
    spread, length = (high - low) or 1.0, (last - first) or 1
    return " ".join(
        f"{(step - first) / length * 300:.1f},{95 - (value - low) / spread * 90:.1f}"
        for step, value in zip(points.steps, points.smooth, strict=True)
    )


def _digest(rows: list[RunRow]) -> str:
    parts = [(row.run_id, row.state, row.step, row.updated_at_ms) for row in rows]
    return hashlib.sha256(json.dumps([parts, int(time.time()) // 30]).encode()).hexdigest()[:16]


_RUN = "/runs/{run:str}"
ROUTES = (
    ("GET", "/runs", show),
    ("GET", "/runs/events", events),
    ("GET", "/runs/curves", curves),
    ("GET", "/runs/diff", diff),
    ("GET", f"{_RUN}/events", run_events),
    ("GET", f"{_RUN}/steps/{{step:int}}", rollouts),
    ("POST", f"{_RUN}/stop", stop),
    ("POST", f"{_RUN}/weights", weights),
)
"""`/runs/new` comes before `/runs/RUN`: see `start_run`."""
RUN_ROUTE = ("GET", _RUN, show_run)
