"""The parts that the acts of the quickstart share: a folder, one engine process, numbered stages.

One engine process samples and trains. A stage is an ordinary Hermes command where there is one, with its log
in the folder, so that it can be repeated by hand.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Generic

from hermes.config.paths import home
from hermes.core.clock import duration
from hermes.core.names import unused_name
from hermes.disk.files import ensure_dir
from hermes.engine.server.options import EngineServeOptions
from hermes.errors import HermesError, MissingDependencyError, UsageError
from hermes.models.local.bundled import Progress, fetch
from hermes.quickstart import pace
from hermes.quickstart.pace import Recipe
from hermes.rl.supervise import ports
from hermes.rl.supervise.process_group import ProcessGroup, sigterm_as_interrupt
from hermes.serving.fetch import fetch_json
from hermes.training.session import ProgressCallback

_NEEDED = ("torch", "transformers", "tinker", "starlette", "uvicorn")


def choose_device(requested: str, progress: Progress) -> str:
    """cpu or cuda. MissingDependencyError if a package is missing, UsageError if there is no GPU."""
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, "train,web", "The quickstart")
    fetch(home(), progress)
    if requested == "cpu":
        return requested
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if requested == "cuda":
        raise UsageError("there is no CUDA device here", "leave out --device, and it runs on the CPU")
    return "cpu"


MODEL = "hermes/smollm2"
LOCAL = {
    "TINKER_API_KEY": "tml-local",
    "HERMES_ENGINE_TOKEN": "",
    "HERMES_API_TOKEN": "",
    "WANDB_API_KEY": "",
    "TINKER_BASE_URL": "",
}
"""No account of the user is used: everything stays on this machine."""


@dataclass(frozen=True, slots=True)
class ActOptions(Generic[Recipe]):
    recipe: Recipe
    device: str
    """cpu or cuda."""
    output: Path
    """The folder in which the folder of this act is created."""
    engine_replicas: int = 1
    """Worker processes of the engine."""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    seconds: float


class Act(Generic[Recipe]):
    """One run of an act. `engine_url` is set by `start_engine`."""

    def __init__(
        self,
        options: ActOptions[Recipe],
        name: str,
        folder: Path,
        processes: ProcessGroup,
        progress: ProgressCallback,
    ) -> None:
        self.device, self.name, self.folder = options.device, name, folder
        self.processes, self.progress = processes, progress
        self.recipe = options.recipe
        self.engine_url = ""
        self.stages: list[Stage] = []
        self._options = options

    def start_engine(
        self,
        memory_gib: float | None = None,
        kv_gib: float | None = None,
        while_loading: Callable[[], object] = lambda: None,
    ) -> None:
        """Also measures this machine, and prints how long the recipe takes.

        `while_loading` is called while the engine loads the model, which uses only one core.
        """
        with self.stage(f"the engine loads {MODEL} on {self.device}", "start"):
            port = ports.choose(ports.ENGINE_PORT)
            url = f"http://127.0.0.1:{port}"
            engine = EngineServeOptions(
                model=MODEL,
                device=self.device,
                replicas=str(self._options.engine_replicas),
                port=port,
                state_dir=self.folder / "engine",
                memory_gib=memory_gib,
                kv_gib=kv_gib,
            )
            self.processes.start("engine", engine.arguments())
            while_loading()
            self.processes.wait_until_ready("engine", lambda: fetch_json(f"{url}/health") is not None)
            self.engine_url = url
            if self.device == "cpu":  # the coefficients of the estimate are those of a CPU
                self.progress(pace.announce(self.recipe, pace.measure_pace(url)))

    @contextmanager
    def stage(self, heading: str, name: str) -> Iterator[None]:
        """Prints the heading with its number, and keeps the time of the block under `name`."""
        self.progress(f"{len(self.stages) + 1}. {heading}")
        began_s = time.monotonic()
        try:
            yield
        except HermesError:
            self.processes.check()  # a failed process is the better explanation
            raise
        self.stages.append(Stage(name, time.monotonic() - began_s))
        self.progress(f"   {duration(self.stages[-1].seconds)}")


@contextmanager
def open_act(kind: str, options: ActOptions[Recipe], progress: ProgressCallback) -> Iterator[Act[Recipe]]:
    """An act in a folder of its own. All its processes are stopped at the end, whatever ends it."""
    output, stem = options.output.absolute(), f"{kind}-{datetime.now():%m%d}"
    names = {path.name for path in (*output.glob("*"), *(home() / "runs").glob("*"))}
    name = unused_name(stem, names)
    folder = ensure_dir(output / name)
    progress(f"everything is written to {folder}")
    with sigterm_as_interrupt(), ProcessGroup(folder / "logs", folder, LOCAL) as processes:
        yield Act(options, name, folder, processes, progress)


def text_table(rows: list[tuple[str, ...]]) -> str:
    """The rows with the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))).rstrip() for row in rows
    )
    return "\n".join(lines)
