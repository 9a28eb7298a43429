"""Finds the weights that a run starts from: a tinker:// path, a PEFT folder, a finished run, a policy.

A tinker:// path is valid only at the engine or service that made it. Weights on this machine are uploaded to
another engine as files, which only a Hermes engine accepts: a service starts from its own paths.
"""

from __future__ import annotations

from pathlib import Path

from hermes.core import parse_object
from hermes.disk.files import stored_folder
from hermes.errors import HermesError, UsageError
from hermes.training.checkpoints import NAME, CheckpointRecord, StateFile, TrainingState
from hermes.training.policy_registry import named_policy

_SCHEME = "tinker://"
_ADAPTER = "adapter_config.json"


def find_start(name: str | None, home: Path, base_model: str) -> str | None:
    """The weights of that name; None: the base model itself, which is also the policy before the first
    promotion. UsageError if the policy stands on another base model."""
    if not name:
        return None
    policy = named_policy(home, name)
    if policy is None:
        return find_weights(name, home)
    if policy.weights is not None and policy.base_model != base_model:
        raise UsageError(
            f"policy {policy.id} stands on {policy.base_model}, not on {base_model}",
            f"--base-model {policy.base_model}, or other weights",
        )
    return policy.weights


def find_weights(name: str, home: Path) -> str:
    """The folder of an adapter on this machine, or a tinker:// path."""
    if (policy := named_policy(home, name)) is not None:
        if policy.weights is None:
            raise UsageError(f"'{name}' is the base model itself, which has no adapter", "name other weights")
        return policy.weights
    if name.startswith(_SCHEME):
        return name
    for folder in (Path(name).expanduser().absolute(), home / "runs" / name):
        if (folder / _ADAPTER).is_file():
            return str(folder)
        if (folder / NAME).is_file():
            return _run_weights(folder)
    raise UsageError(
        f"there are no weights called '{name}'",
        "give a tinker:// path, the folder of a PEFT adapter, the name of a run that has a checkpoint, "
        "'policy', or 'policy:ID'",
    )


def find_folder(name: str, home: Path) -> Path:
    """The same as a folder on this machine, of any engine of this home."""
    weights = find_weights(name, home)
    if not weights.startswith(_SCHEME):
        return Path(weights)
    for root in engine_folders(home):
        folder = checkpoint_folder(root, weights)
        if (folder / _ADAPTER).is_file():
            return folder
    raise UsageError(
        f"{weights} is not with an engine of this machine's home", "give the folder of a PEFT adapter instead"
    )


def engine_folders(home: Path) -> list[Path]:
    """Where the engines of this home store checkpoints: the shared engine, those of RL runs and of sweeps."""
    patterns = ("runs/*/engine", "sweeps/*/engine")
    return [home / "engine", *(folder for pattern in patterns for folder in sorted(home.glob(pattern)))]


def checkpoint_folder(root: Path, tinker_path: str) -> Path:
    """Where an engine that keeps its checkpoints in `root` stores this one."""
    return stored_folder(root, *tinker_path.removeprefix(_SCHEME).split("/"))


def rank_of(folder: Path) -> int:
    path = folder / _ADAPTER
    try:
        return int(parse_object(path.read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HermesError(f"{path} cannot be read: {error}", "is it a LoRA adapter?") from error


def _run_weights(folder: Path) -> str:
    state = StateFile(folder).state()
    if state is None or not state.kept:
        raise UsageError(f"the run in {folder} has no checkpoint yet", "wait for its first, or its end")
    chosen = start_checkpoint(state)
    local_folder = checkpoint_folder(folder / "engine", chosen.weights)
    return str(local_folder) if (local_folder / _ADAPTER).is_file() else chosen.weights


def start_checkpoint(state: TrainingState) -> CheckpointRecord:
    """The best by held-out loss of a run on stored rows, if it has one; the newest of an RL run."""
    return state.best if state.kind != "rl" and state.best else state.kept[-1]
