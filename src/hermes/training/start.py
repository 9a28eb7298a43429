"""Weights to begin with, by whatever a person calls them: a tinker:// path, a PEFT folder, a finished run.

A path is good where the engine or service that made it trains. Weights that lie on this machine are given to
another engine as files, which only an engine of Hermes takes: a service starts from its own paths.
"""

from __future__ import annotations

import json
from pathlib import Path

from hermes.config.settings import MANAGED
from hermes.core import new_id
from hermes.errors import HermesError, UsageError
from hermes.training.checkpoints import NAME, CheckpointRecord, StateFile, TrainingState
from hermes.training.service.client import ServiceConnection

_SCHEME = "tinker://"
_ADAPTER = "adapter_config.json"


def find_weights(name: str, home: Path) -> str:
    """A tinker:// path as it is, or of a run that an engine elsewhere has; else the adapter's folder."""
    if name.startswith(_SCHEME):
        return name
    for place in (Path(name).expanduser().absolute(), home / "runs" / name):
        if (place / _ADAPTER).is_file():
            return str(place)
        if (place / NAME).is_file():
            return _of_run(place)
    raise UsageError(
        f"there are no weights called '{name}'",
        "give a tinker:// path, the folder of a PEFT adapter, or the name of a run that has a checkpoint",
    )


def find_folder(name: str, home: Path) -> Path:
    """The same as a folder on this machine, wherever an engine of this home has it."""
    found = find_weights(name, home)
    if not found.startswith(_SCHEME):
        return Path(found)
    for root in engine_folders(home):
        folder = root / found.removeprefix(_SCHEME)
        if (folder / _ADAPTER).is_file():
            return folder
    raise UsageError(
        f"{found} is not with an engine of this machine's home", "give the folder of a PEFT adapter instead"
    )


def engine_folders(home: Path) -> list[Path]:
    """Where the engines of this home keep their checkpoints: the shared engine's, and those of RL runs."""
    return [home / "engine", *sorted((home / "runs").glob("*/engine"))]


def rank_of(folder: Path) -> int:
    path = folder / _ADAPTER
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HermesError(f"{path} cannot be read: {error}", "is it a LoRA adapter?") from error


def as_path(connection: ServiceConnection, weights: str) -> str:
    """What the engine calls these weights, once it has them."""
    if weights.startswith(_SCHEME):
        return weights
    if connection.url == MANAGED:
        raise UsageError(f"a service does not take the files in {weights}", "start from a path of its own")
    from hermes.engine.server.client import import_adapter

    made = import_adapter(connection.url, Path(weights), f"start-{new_id().lower()}")
    return str(made["weights"])


def _of_run(folder: Path) -> str:
    state = StateFile(folder).state()
    if state is None or not state.kept:
        raise UsageError(f"the run in {folder} has no checkpoint yet", "wait for its first, or its end")
    chosen = start_checkpoint(state)
    own = folder / "engine" / chosen.weights.removeprefix(_SCHEME)
    return str(own) if (own / _ADAPTER).is_file() else chosen.weights


def start_checkpoint(state: TrainingState) -> CheckpointRecord:
    """Of SFT the best checkpoint by held-out loss, where there is one; of everything else the newest."""
    return state.best if state.kind == "sft" and state.best else state.kept[-1]
