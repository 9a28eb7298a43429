"""Where a run's numbers go: always the store and `metrics.jsonl`; W&B, TensorBoard and trackio when asked
for.

A sink that fails is counted (`sinks/failures`) and named once in the log, and never stops a run. Numbers that
are not finite have no place in JSON or in the store: they are left out there, and counted.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hermes.core.files import atomic_write, ensure_dir, read_text
from hermes.core.json import JSONObject
from hermes.errors import HermesError, UsageError

if TYPE_CHECKING:
    from hermes.store import Writer

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
WANDB = "wandb.json"
_INIT_S = 30.0
"""How long a service that does not answer may hold up the start of a run."""
EXTRAS = ("wandb", "wandb-offline", "tensorboard", "trackio")


class Label(NamedTuple):
    """What a run is called where its numbers go."""

    run_id: str
    project: str
    title: str
    group: str | None = None
    """At W&B: runs of one name are shown together."""


class MetricsSink(Protocol):
    @property
    def name(self) -> str: ...
    def rewind(self, step: int) -> None:
        """The run goes on from here: later steps will be made again."""
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
            kept = [line for line in text.splitlines() if _step_of(line) <= step]
            atomic_write(self._path, "".join(f"{line}\n" for line in kept))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        line = json.dumps({"step": step, "time_s": round(time.time(), 3), **values})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def close(self) -> None:
        """Every line is written as it comes."""


class StoreSink:
    name = "store"

    def __init__(self, writer: Writer, run_id: str) -> None:
        self._writer = writer
        self._run_id = run_id

    def rewind(self, step: int) -> None:
        """Also what another run of this name left, whose folder is gone."""
        self._writer.rewind_metrics(self._run_id, step).result()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._writer.add_metrics(self._run_id, step, values).result()

    def close(self) -> None:
        """Whoever opened the store closes it."""


class _Tracker:
    """W&B, or trackio, which has the same face. What they say goes to standard error."""

    def __init__(self, module: str, title: str, project: str, facts: JSONObject, **more: Any) -> None:
        self.name = module
        try:
            self._module = importlib.import_module(module)
        except ImportError as error:
            raise _missing(module, module) from error
        with redirect_stdout(sys.stderr):
            begun = self._module.init(project=project, name=title, config=facts, resume="allow", **more)
        self.url: str | None = getattr(begun, "url", None)
        """Where it can be looked at; None: on this machine only."""

    def rewind(self, step: int) -> None:
        """These services take a step once, and ignore it the second time."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with redirect_stdout(sys.stderr):
            self._module.log(dict(values), step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._module.finish()


class _TensorBoard:
    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._writer = _summary_writer()(str(folder / "tensorboard"))

    def rewind(self, step: int) -> None:
        """A step that is drawn twice is drawn at the same place."""

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
        """Sink → writes that did not work."""
        self._wandb: Path | None = None

    def add(
        self, name: str, folder: Path, label: Label, settings: JSONObject, *, required: bool = True
    ) -> None:
        """Opens one of EXTRAS. One that fails to start is counted; so is one that is not installed, unless it
        is `required`: then it is an error."""
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
            self._note({"url": getattr(sink, "url", None), "error": None})

    def write(self, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Hands the numbers out; returns what was handed."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        finite["sinks/failures"] = float(self.failures.total())
        if len(finite) <= len(values):
            finite["sinks/not_finite"] = float(len(values) + 1 - len(finite))
        for sink in self._sinks:
            self._try(sink, partial(sink.write, step, finite))
        return finite

    def rewind(self, step: int) -> None:
        for sink in self._sinks:
            self._try(sink, partial(sink.rewind, step))

    def close(self) -> None:
        for sink in self._sinks:
            self._try(sink, sink.close)

    def _try(self, sink: MetricsSink, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:  # noqa: BLE001 (see `add`)
            self._count(sink.name, error)

    def _count(self, name: str, error: Exception) -> None:
        if not self.failures[name]:
            reason = f"{error}" or type(error).__name__
            if isinstance(error, HermesError) and error.hint:
                reason = f"{reason}; {error.hint}"
            logger.warning("metrics: the sink %s failed, the run goes on without it: %s", name, reason)
            if name.startswith("wandb"):
                self._note({"error": reason})
        self.failures[name] += 1

    def _note(self, facts: JSONObject) -> None:
        """For whoever looks at the run: W&B's address, and why it failed."""
        assert self._wandb is not None, "W&B was added"
        try:
            known = read_wandb(self._wandb.parent)
            atomic_write(self._wandb, json.dumps({**known, **facts}) + "\n")
        except HermesError as error:
            logger.warning("%s", error.message)


def read_wandb(folder: Path) -> JSONObject:
    """What W&B said of the run in that folder: `url`, `error`; nothing where it was never asked."""
    text = read_text(folder / WANDB)
    try:
        told = json.loads(text) if text else {}
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _open(name: str, folder: Path, label: Label, settings: JSONObject) -> MetricsSink:
    if name == "tensorboard":
        return _TensorBoard(folder)
    if name == "trackio":
        return _Tracker("trackio", label.title, label.project, settings)
    if name in ("wandb", "wandb-offline"):
        mode = "offline" if name == "wandb-offline" else "online"
        quiet = {"init_timeout": _INIT_S, "silent": True}  # it would also speak on standard output, at exit
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
    raise _missing("tensorboard", "tensorboardX")


def _missing(sink: str, package: str) -> HermesError:
    source = "'hermes-research[wandb]'" if package == "wandb" else package
    return HermesError(
        f"the sink {sink} needs the package '{package}', which is not installed", f"pip install {source}"
    )


def configured(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Sinks that are on without being named: W&B by its key or mode, unless that is `disabled`."""
    mode = environ.get("WANDB_MODE")
    if mode == "disabled":
        return ()
    if mode == "offline":
        return ("wandb-offline",)
    return ("wandb",) if environ.get("WANDB_API_KEY") else ()


def _step_of(line: str) -> float:
    """Of a torn line: never."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
