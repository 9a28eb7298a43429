"""Datasets: choose a format and a query, see rows before anything is written, export, download."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.responses import FileResponse, RedirectResponse, Response

from hermes.core import JSONObject
from hermes.data.export.manifest import MANIFEST_ENDING, REMOVED_ENDING, logged_files
from hermes.data.export.run import ExportPlan, preview
from hermes.data.export.select import TrajectorySelection
from hermes.data.formats.base import Format
from hermes.data.formats.registry import FORMATS, get_format
from hermes.safety.redact import Redactor
from hermes.store import Filter, Reader
from hermes.web.query import TrajectoryQuery, parse_query
from hermes.web.render.loss import LossView, loss_view
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError

_PREVIEW_ROWS = 3
_SHOWN_CHARS = 6000
_MAX_SHOWN = 100
_MAX_PICKED = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}\.(?:jsonl|json|parquet|arrow|md)")


@dataclass(frozen=True, slots=True)
class ExportedDataset:
    """A file that was exported, and the files that describe it."""

    name: str
    size_bytes: int
    written_at_ms: int
    beside: tuple[Path, ...]
    """Its manifest, and what was removed."""


class PreviewedRow(NamedTuple):
    text: str
    """As JSON."""
    loss: LossView | None
    """None: the format is no training data."""


@dataclass(frozen=True, slots=True)
class ExportChoice:
    """Which rows are exported, and in which format; the page previews what the command writes."""

    form: Format
    query: TrajectoryQuery
    ids: tuple[str, ...]
    """Picked trajectories; empty: all that match the query."""
    everything: bool
    """Also those that did not complete."""

    def selection(self) -> TrajectorySelection:
        filters = Filter(ids=self.ids or None, text=self.query.words or None)
        return TrajectorySelection(filters, where=self.query.conditions, only_completed=not self.everything)

    def arguments(self, output: str) -> tuple[str, ...]:
        """Those of `hermes`."""
        arguments: tuple[str, ...] = ("export", "--format", self.form.name)
        for trajectory_id in self.ids:
            arguments += ("--id", trajectory_id)
        for condition in self.query.conditions:
            arguments += ("--where", condition.text)
        arguments += ("--text", self.query.words) if self.query.words else ()
        arguments += ("--all",) if self.everything else ()
        return (*arguments, "--output", output)


def show(request: WebRequest) -> Response:
    form_name = request.choice("format", tuple(FORMATS))
    query = parse_query(request.text("q"))
    everything = request.query.get("all") == "1"
    previewed = request.query.get("preview") == "1"
    rows: list[PreviewedRow] = []
    left_out: list[tuple[str, int]] = []
    with request.context.reader() as reader:
        choice = ExportChoice(
            get_format(form_name), query, _resolved(reader, request.texts("id")), everything
        )
        if previewed:
            plan = ExportPlan(choice.form, Path("preview.jsonl"), choice.selection())
            redactor = Redactor(request.context.config().secrets)
            data, reasons = preview(reader, plan, _PREVIEW_ROWS, redactor)
            rows = [_previewed(form_name, row) for row in data]
            left_out = reasons.most_common(12)
    values: dict[str, Any] = {
        "formats": FORMATS.values(),
        "choice": choice,
        "command": shlex.join(("hermes", *choice.arguments(f"{form_name}.jsonl"))),
        "previewed": previewed,
        "rows": rows,
        "left_out": left_out,
        "exports": _exports(_files(request)),
        "elsewhere": _elsewhere(request),
    }
    return request.page("datasets.html", values)


def export(request: WebRequest) -> Response:
    """Writes the file with `hermes export`, in a job."""
    form = get_format(request.field("format", max_chars=100))
    query = parse_query(request.field("q", max_chars=2000))
    with request.context.reader() as reader:
        ids = _resolved(reader, request.field("ids").split())
    choice = ExportChoice(form, query, ids, request.field("all") == "1")
    stem = f"{form.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    target = _folder(request) / f"{stem}.jsonl"
    _folder(request).mkdir(parents=True, exist_ok=True)
    job = request.context.jobs.start(
        f"Export as {form.name}",
        choice.arguments(str(target)),
        f"/datasets?{urlencode({'format': form.name})}",
    )
    return RedirectResponse(f"/jobs/{job.job_id}", 303)


def download(request: WebRequest) -> Response:
    """A file that was exported here: a name is looked up, never joined to a path."""
    name = request.path_values["name"]
    path = next((path for path in _files(request) if path.name == name), None)
    if path is None:
        raise PageError(404, f"there is no export '{name[:80]}'", "The page Datasets lists them.")
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


def _resolved(reader: Reader, references: Sequence[str]) -> tuple[str, ...]:
    if len(references) > _MAX_PICKED:
        raise PageError(
            400,
            f"{len(references)} trajectories are picked",
            f"At most {_MAX_PICKED} are taken; for more, select them by a query.",
        )
    return tuple(dict.fromkeys(map(reader.resolve, references)))


def _previewed(format_name: str, row: JSONObject) -> PreviewedRow:
    text = json.dumps(row, ensure_ascii=False, indent=2, default=str)[:_SHOWN_CHARS]
    return PreviewedRow(text, loss_view(format_name, row))


def _folder(request: WebRequest) -> Path:
    return request.context.home / "exports"


def _files(request: WebRequest) -> list[Path]:
    folder = _folder(request)
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_file() and _NAME.fullmatch(path.name)]


def _exports(files: list[Path]) -> list[ExportedDataset]:
    """Newest first. A file that lost its dataset is an entry of its own."""
    by_stem: dict[str, list[Path]] = {}
    for path in files:
        by_stem.setdefault(path.name.partition(".")[0], []).append(path)
    exports = []
    for members in by_stem.values():
        data, *beside = sorted(members, key=lambda path: (path.name.count("."), path.name))
        state = data.stat()
        exports.append(ExportedDataset(data.name, state.st_size, int(state.st_mtime * 1000), tuple(beside)))
    return sorted(exports, key=lambda entry: entry.written_at_ms, reverse=True)[:_MAX_SHOWN]


def _elsewhere(request: WebRequest) -> list[tuple[str, int, int]]:
    """Data that the command line exported: path, size, and when; newest first. They are named, not served."""
    folder = _folder(request).resolve()
    paths = [path for path in logged_files(request.context.home) if not path.is_relative_to(folder)]
    rows: list[tuple[str, int, int]] = []
    for path in reversed(paths):
        if path.name.endswith((MANIFEST_ENDING, REMOVED_ENDING)) or len(rows) == _MAX_SHOWN:
            continue
        with suppress(OSError):
            state = path.stat()
            rows.append((str(path), state.st_size, int(state.st_mtime * 1000)))
    return rows


ROUTES = (
    ("GET", "/datasets", show),
    ("POST", "/datasets", export),
    ("GET", "/datasets/files/{name:str}", download),
)
