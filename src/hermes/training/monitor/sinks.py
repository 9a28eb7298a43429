"""Metric sinks: always the store and `metrics.jsonl`; W&B, TensorBoard and trackio on request.

A sink that fails is counted (`sinks/failures`) and logged once, and never stops a run. Values that are not
finite cannot be written as JSON or to the store: they are left out and counted (`sinks/not_finite`).
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hermes.core import parse_object
from hermes.core.json import JSONObject
from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.errors import HermesError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from hermes.store import Writer

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
WANDB = "wandb.json"
_INIT_S = 30.0
"""How long a service that does not respond may delay the start of a run."""
EXTRAS = ("wandb", "wandb-offline", "tensorboard", "trackio")


class Label(NamedTuple):
    """The names of a run at its sinks."""

    run_id: str
    project: str
    title: str
    group: str | None = None
    """The W&B group."""


class MetricsSink(Protocol):
    @property
    def name(self) -> str: ...
    def rewind(self, step: int) -> None:
        """The run resumes from `step`: later steps will be written again."""
        ...

    def write(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """`metrics.jsonl`: one object a step."""

    name = METRICS

    def __init__(self, folder: Path) -> None:
        self._path = ensure_dir(folder) / METRICS

    def rewind(self, step: int) -> None:
        text = read_text(self._path)
        if text is not None:
            lines = [line for line in text.splitlines() if _step_of(line) <= step]
            atomic_write(self._path, "".join(f"{line}\n" for line in lines))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        line = json.dumps({"step": step, "time_s": round(time.time(), 3), **values})
        with self._path.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            # A write that a full disk cut off leaves a torn line.
            torn = end > 0 and file.read(1) != b"\n"
            file.write(b"\n" * torn + line.encode() + b"\n")

    def close(self) -> None:
        """Nothing to do: every line is written immediately."""


class StoreSink:
    """A step does not wait for the disk: its row is durable with the next one, or with a checkpoint."""

    name = "store"

    def __init__(self, writer: Writer, run_id: str) -> None:
        self._writer = writer
        self._run_id = run_id
        self._pending: Future[None] | None = None

    def rewind(self, step: int) -> None:
        """Also removes the metrics of an earlier run of this name whose folder was deleted."""
        self.flush()
        self._writer.rewind_metrics(self._run_id, step).result()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        earlier, self._pending = self._pending, self._writer.add_metrics(self._run_id, step, values)
        if earlier is not None:
            earlier.result()

    def flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """The caller that opened the store closes it."""
        self.flush()


class _Tracker:
    """W&B, or trackio, which has the same API. Their output goes to standard error."""

    def __init__(self, module: str, title: str, project: str, facts: JSONObject, **more: Any) -> None:
        self.name = module
        try:
            self._module = importlib.import_module(module)
        except ImportError as error:
            raise _missing_package(module, module) from error
        with redirect_stdout(sys.stderr):
            tracked_run = self._module.init(project=project, name=title, config=facts, resume="allow", **more)
        self.url: str | None = getattr(tracked_run, "url", None)
        """The page of the run; None: it is on this machine only."""

    def rewind(self, step: int) -> None:
        """Nothing to do: these services ignore a step that they already have."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with redirect_stdout(sys.stderr):
            self._module.log(dict(values), step=step)

    def write_table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[list[Any]]) -> None:
        with redirect_stdout(sys.stderr):
            table = self._module.Table(columns=list(columns), data=list(rows), allow_mixed_types=True)
            self._module.log({name: table}, step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._module.finish()


class _TensorBoard:
    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._writer = _summary_writer()(str(folder / "tensorboard"))

    def rewind(self, step: int) -> None:
        """Nothing to do: a step that is written twice is drawn at the same position."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Sinks:
    """All sinks of a run."""

    def __init__(self, sinks: Sequence[MetricsSink]) -> None:
        self._sinks = list(sinks)
        self.failures: Counter[str] = Counter()
        """Sink → failed writes."""
        self._wandb: Path | None = None

    def add(
        self, name: str, folder: Path, label: Label, settings: JSONObject, *, required: bool = True
    ) -> None:
        """Opens one of EXTRAS. A sink that fails to start is counted. A sink that is not installed is counted
        too, or is an error if it is `required`."""
        if name.startswith("wandb"):
            self._wandb = folder / WANDB
        try:
            sink = _open(name, folder, label, settings)
        except HermesError as error:
            if required:
                raise
            self._count(name, error)
            return
        except Exception as error:  # noqa: BLE001 (foreign code; its failure must not cost the run)
            self._count(name, error)
            return
        self._sinks.append(sink)
        if sink.name == "wandb":
            self._update_wandb_file({"url": getattr(sink, "url", None), "error": None})

    def write(self, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Writes the metrics to all sinks; returns what was written."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        finite["sinks/failures"] = float(self.failures.total())
        if len(finite) <= len(values):
            finite["sinks/not_finite"] = float(len(values) + 1 - len(finite))
        for sink in self._sinks:
            self._try(sink, partial(sink.write, step, finite))
        return finite

    @property
    def take_tables(self) -> bool:
        """Whether a sink shows tables: W&B or trackio."""
        return any(isinstance(sink, _Tracker) for sink in self._sinks)

    def write_table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[list[Any]]) -> None:
        """Writes a table to the sinks that show tables."""
        for sink in self._sinks:
            if isinstance(sink, _Tracker):
                self._try(sink, partial(sink.write_table, step, name, columns, rows))

    def rewind(self, step: int) -> None:
        for sink in self._sinks:
            self._try(sink, partial(sink.rewind, step))

    def flush(self) -> None:
        """Rows that were written to the store are durable when this returns."""
        for sink in self._sinks:
            if isinstance(sink, StoreSink):
                self._try(sink, sink.flush)

    def close(self) -> None:
        for sink in self._sinks:
            self._try(sink, sink.close)

    def _try(self, sink: MetricsSink, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 (see `add`)
            self._count(sink.name, error)

    def _count(self, name: str, error: Exception) -> None:
        if not self.failures[name]:
            reason = f"{error}" or type(error).__name__
            if isinstance(error, HermesError) and error.hint:
                reason = f"{reason}; {error.hint}"
            logger.warning("metrics: the sink %s failed, the run continues without it: %s", name, reason)
            if name.startswith("wandb"):
                self._update_wandb_file({"error": reason})
        self.failures[name] += 1

    def _update_wandb_file(self, changes: JSONObject) -> None:
        """Records the address of the run at W&B, or why W&B failed."""
        assert self._wandb is not None, "W&B was added"
        try:
            recorded = read_wandb(self._wandb.parent)
            atomic_write(self._wandb, json.dumps({**recorded, **changes}) + "\n")
        except HermesError as error:
            logger.warning("%s", error.message)


def read_wandb(folder: Path) -> JSONObject:
    """`url` and `error` of the run at W&B; empty if W&B was not used."""
    text = read_text(folder / WANDB)
    try:
        return parse_object(text) if text else {}
    except ValueError:
        return {}


def _open(name: str, folder: Path, label: Label, settings: JSONObject) -> MetricsSink:
    if name == "tensorboard":
        return _TensorBoard(folder)
    if name == "trackio":
        return _Tracker("trackio", label.title, label.project, settings)
    if name in ("wandb", "wandb-offline"):
        mode = "offline" if name == "wandb-offline" else "online"
        quiet = {"init_timeout": _INIT_S, "silent": True}  # else it also prints to standard output at exit
        more: JSONObject = {"id": label.run_id, "dir": str(folder), "mode": mode, "settings": quiet}
        if label.group:
            more["group"] = label.group
        return _Tracker("wandb", label.title, label.project, settings, **more)
    raise UsageError(f"there is no sink '{name}'", f"one of: {', '.join(EXTRAS)}")


def _summary_writer() -> Any:
    for module in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            return importlib.import_module(module).SummaryWriter
        except ImportError:
            continue
    raise _missing_package("tensorboard", "tensorboardX")


def _missing_package(sink: str, package: str) -> HermesError:
    source = "'hermes-research[wandb]'" if package == "wandb" else package
    return HermesError(
        f"the sink {sink} needs the package '{package}', which is not installed", f"pip install {source}"
    )


def default_sinks(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Sinks that are enabled by the environment: W&B by its key or mode, unless that is `disabled`."""
    mode = environ.get("WANDB_MODE")
    if mode == "disabled":
        return ()
    if mode == "offline":
        return ("wandb-offline",)
    return ("wandb",) if environ.get("WANDB_API_KEY") else ()


def _step_of(line: str) -> float:
    """The step of a line; infinity for an incomplete line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
