"""Finds trained weights by name: an RL run, a run of `hermes train`, or a tinker:// path.

A source is a checkpoint and where its files are: in a folder of an engine on this machine, or at a Tinker
service that can export them. Nothing is downloaded or written here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.core import parse_object
from hermes.core.names import policy_name
from hermes.disk.files import stored_folder
from hermes.errors import HermesError, UsageError
from hermes.rl.results import saved_checkpoints
from hermes.rl.run import RlRun, find_run
from hermes.rl.service import service_of
from hermes.training.checkpoints import NAME, CheckpointRecord, StateFile
from hermes.training.start_weights import checkpoint_folder, engine_folders, start_checkpoint

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.training.checkpoints import TrainingState

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
SCHEME = "tinker://"
_DOWNLOADS = "checkpoints"
_KINDS = ("sampler_weights", "weights", "external_weights")


@dataclass(frozen=True, slots=True)
class WeightsSource:
    """One checkpoint of an adapter."""

    path: str
    """tinker://RUN/KIND/NAME; tinker://RUN for the newest checkpoint at the service."""
    folder: Path | None
    """Its PEFT files on this machine; None: they have to be downloaded."""
    service: str | None
    """The Tinker service to download from; None: there is none."""
    home: Path
    base_model: str | None
    """As the engine names it; None: `adapter_config.json` names it."""
    adapter_folder: Path
    """Where the adapter is exported to by default."""
    merged_folder: Path
    gguf_path: Path
    name: str
    """For people: the run and the step."""
    sampler: str | None = None
    """The path that the engine samples the same weights by, where it is recorded."""

    @property
    def run_id(self) -> str:
        """The run's name at the engine or service."""
        return self.path.removeprefix(SCHEME).partition("/")[0]


def find_source(
    config: Config, name: str | None = None, step: int | None = None, base_url: str | None = None
) -> WeightsSource:
    """UsageError if nothing has this name, or it has no checkpoint of that step.

    `name` None: the run of this home that saved a checkpoint last.
    `base_url`: the Tinker service that has the weights, where the run does not record it.
    """
    if name is None:
        name = _newest_run(config.home)
    service = base_url or service_of(config.settings.rl, config.environ) or _local_url()
    if name.startswith(SCHEME):
        if step is not None:
            raise UsageError(f"--step does not apply to {name}", "the path itself names the checkpoint")
        return _path_source(config.home, name, service)
    folder = _training_folder(config.home, name)
    if folder is not None:
        return _training_source(config.home, folder, step, service)
    return run_source(find_run(config.home, name), step)


def run_source(run: RlRun, step: int | None = None) -> WeightsSource:
    """A checkpoint of a run of `hermes rl`; None: the newest."""
    checkpoint = choose_checkpoint(run, step)
    settings, stem = run.config().run, f"step-{checkpoint['step']}"
    folder = checkpoint_folder(run.folder / "engine", checkpoint["path"])
    return WeightsSource(
        checkpoint["weights"],
        folder if is_complete(folder) else _local_folder(run.home, checkpoint["path"]),
        settings.service,
        run.home,
        settings.model,
        run.folder / "weights" / stem,
        run.folder / "merged" / stem,
        run.folder / "weights" / f"{stem}.gguf",
        policy_name(run.run_id, checkpoint["step"]),
        checkpoint["path"],
    )


def choose_checkpoint(run: RlRun, step: int | None) -> dict[str, Any]:
    """The checkpoint of that step; None: the newest."""
    checkpoints = saved_checkpoints(run)
    if not checkpoints:
        raise UsageError(f"run {run.run_id} has no checkpoint yet", "it saves one at its end at the latest")
    if step is None:
        return checkpoints[-1]
    by_step = {checkpoint["step"]: checkpoint for checkpoint in checkpoints}
    _check_step(run.run_id, step, by_step)
    return by_step[step]


def _newest_run(home: Path) -> str:
    states = [path for path in (home / "runs").glob(f"*/{NAME}") if parse_object(path.read_text())["kept"]]
    if not states:
        raise UsageError("no run has a checkpoint yet", "name one: hermes rl weights RUN|tinker://…")
    return max(states, key=lambda path: path.stat().st_mtime).parent.name


def is_training_run(home: Path, name: str) -> bool:
    """Whether it is a run of `hermes train`, not of `hermes rl`."""
    return _training_folder(home, name) is not None


def _training_folder(home: Path, name: str) -> Path | None:
    """The folder of a run of `hermes train`, by its name or its path; None: there is no such run."""
    for folder in (Path(name).expanduser().absolute(), home / "runs" / name):
        if (folder / NAME).is_file() and not (folder / "status.json").exists():
            return folder
    return None


def _training_source(home: Path, folder: Path, step: int | None, service: str) -> WeightsSource:
    state = StateFile(folder).state()
    if state is None or not state.kept:
        raise UsageError(f"the run in {folder} has no checkpoint yet", "wait for its first, or its end")
    checkpoint = start_checkpoint(state) if step is None else _checkpoint_of_step(folder.name, state, step)
    stem = f"step-{checkpoint.step}"
    return WeightsSource(
        checkpoint.weights,
        _local_folder(home, checkpoint.sampler) or _local_folder(home, checkpoint.weights),
        service,
        home,
        str(state.settings["base_model"]) if "base_model" in state.settings else None,
        folder / "weights" / stem,
        folder / "merged" / stem,
        folder / "weights" / f"{stem}.gguf",
        policy_name(folder.name, checkpoint.step),
        checkpoint.sampler,
    )


def _checkpoint_of_step(name: str, state: TrainingState, step: int) -> CheckpointRecord:
    by_step = {checkpoint.step: checkpoint for checkpoint in (*state.kept, state.best) if checkpoint}
    _check_step(name, step, by_step)
    return by_step[step]


def _check_step(name: str, step: int, by_step: Collection[int]) -> None:
    if step not in by_step:
        steps = ", ".join(str(saved) for saved in sorted(by_step))
        raise UsageError(f"run {name} has no checkpoint of step {step}", f"it has: {steps}")


def _path_source(home: Path, path: str, service: str) -> WeightsSource:
    run_id, *rest = path.removeprefix(SCHEME).rstrip("/").split("/")
    climbs = any(part in ("", ".", "..") for part in (run_id, *rest))
    if climbs or (rest and (len(rest) != 2 or rest[0] not in _KINDS)):
        raise UsageError(
            f"'{path}' is not the path of a checkpoint",
            f"write {SCHEME}RUN/{'|'.join(_KINDS)}/NAME, or {SCHEME}RUN",
        )
    folder = _local_folder(home, path) if rest else _newest_local_folder(home, run_id)
    target = stored_folder(Path(_DOWNLOADS), run_id)
    stem = rest[1] if rest else "newest"
    return WeightsSource(
        path.rstrip("/"),
        folder,
        service,
        home,
        None,
        target,
        target.with_name(f"{target.name}-merged-{stem}"),
        target.with_name(f"{target.name}-{stem}.gguf"),
        _name_of(home, path) or f"{run_id}@{stem}",
        path.replace("/weights/", "/sampler_weights/") if rest and rest[0] == "weights" else None,
    )


def _name_of(home: Path, path: str) -> str | None:
    """The name of the checkpoint at a tinker:// path, if a run of this home made it."""
    for file in sorted((home / "runs").glob(f"*/{NAME}")):
        try:
            state = StateFile(file.parent).state()
        except HermesError:
            continue  # another run's file is damaged
        for checkpoint in (*state.kept, state.best) if state else ():
            if checkpoint is not None and path in (checkpoint.weights, checkpoint.sampler):
                return policy_name(file.parent.name, checkpoint.step)
    return None


def _local_folder(home: Path, path: str) -> Path | None:
    folders = (checkpoint_folder(root, path) for root in engine_folders(home))
    return next((folder for folder in folders if is_complete(folder)), None)


def _newest_local_folder(home: Path, run_id: str) -> Path | None:
    return max(_checkpoints(home, run_id), key=_created_s, default=None)


def _checkpoints(home: Path, run_id: str) -> Iterator[Path]:
    for run in (stored_folder(root, run_id) for root in engine_folders(home)):
        for kind in _KINDS:
            yield from filter(is_complete, (run / kind).glob("*"))


def _created_s(folder: Path) -> float:
    created_s: float = json.loads((folder / "checkpoint.json").read_text(encoding="utf-8"))["created_s"]
    return created_s


def is_complete(folder: Path) -> bool:
    """Whether the folder has the files of an adapter."""
    return all((folder / name).is_file() for name in ADAPTER_FILES)


def _local_url() -> str:
    from hermes.training.service.client import LOCAL_URL

    return LOCAL_URL
