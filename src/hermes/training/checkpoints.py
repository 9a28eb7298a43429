"""The state of a training run on disk: enough to resume exactly as if it had never been interrupted.

`training.json` in the run's folder is replaced atomically, after the engine has saved the weights it names.
The order of data is a function of seed and step, so the step is also the state of every random choice. Leases
of steps after the checkpoint are in `taken`: a resumed run trains their batches again in the same order, on
top of the same weights. A batch is acknowledged once a checkpoint contains it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hermes.core import parse_object
from hermes.core.json import JSONObject
from hermes.disk.filelock import FileLock
from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.errors import HermesError, UsageError

NAME = "training.json"
_FORMAT = 1
_LISTS = ("taken", "settled", "published", "probe")


class CheckpointRecord(NamedTuple):
    """One checkpoint."""

    step: int
    weights: str
    """To resume from: tinker://…/weights/…"""
    sampler: str
    """To sample from: tinker://…/sampler_weights/…"""
    value: float | None = None
    """The score that decides which checkpoint is best."""
    evaluated: bool = False
    """The score is of an evaluation: it takes precedence over scores that are not."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The content of `training.json`."""

    kind: str
    """rl, or that of an offline objective: sft, dpo, kto, reward."""
    settings: JSONObject
    """The settings that the run was started with; a run with other settings cannot resume from it."""
    kept: tuple[CheckpointRecord, ...] = ()
    """Checkpoints, oldest first; a resumed run starts from the last."""
    best: CheckpointRecord | None = None
    taken: tuple[int, ...] = ()
    """Leases of the steps after the last checkpoint, in order."""
    settled: tuple[int, ...] = ()
    """Leases of batches that the last checkpoint contains; a resumed run acknowledges them again."""
    last_lease: int = 0
    """The newest lease the run has received; 0: none."""
    probe: tuple[int, ...] = ()
    """The tokens on which sampler and trainer are compared."""
    best_loss: float | None = None
    """The lowest held-out loss of SFT, or the highest evaluation of RL, up to the checkpoint."""
    waited: int = 0
    """Evaluations since then."""
    finished: str | None = None
    """Why the run ended; None: it has not."""
    published: tuple[str, ...] = ()
    """Sampler weights that are not deleted, oldest first; some may belong to checkpoints."""

    @property
    def step(self) -> int:
        return self.kept[-1].step if self.kept else 0

    @property
    def weights(self) -> str | None:
        return self.kept[-1].weights if self.kept else None


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which checkpoints are kept."""

    every: int = 25
    """Steps between two checkpoints."""
    last: int = 3
    """How many are kept, besides the best one."""


class StateFile:
    """The state file of one run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def read(self, kind: str, settings: Mapping[str, object]) -> TrainingState:
        """The state on disk, or a new one. UsageError if it belongs to a run with other settings."""
        text = read_text(self.path)
        requested = json.loads(json.dumps(dict(settings)))
        if text is None:
            return TrainingState(kind, requested)
        state = _decode(text, self.path)
        changed = [name for name in requested if state.settings.get(name) != requested[name]]
        if state.kind != kind:
            changed = ["kind"]
        if changed:
            raise UsageError(
                f"{self.path.parent} holds a run with another {', '.join(changed)}",
                "use another run name, or the settings it was started with",
            )
        return replace(state, settings=requested)

    def state(self) -> TrainingState | None:
        """The state on disk, whatever its settings; None: there is none."""
        text = read_text(self.path)
        return None if text is None else _decode(text, self.path)

    def write(self, state: TrainingState) -> None:
        atomic_write(self.path, json.dumps({"format": _FORMAT, **asdict(state)}, indent=1) + "\n")


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """One trainer per run: two would train on the same batches. The lock ends with the process."""
    lock = FileLock(ensure_dir(folder) / "training.lock")
    try:
        acquired = lock.acquire(blocking=False)
    except OSError as error:
        raise HermesError(
            f"cannot write {lock.path}: {error.strerror}", "free space, or use --run-dir"
        ) from error
    if not acquired:
        raise UsageError(
            f"another process is training the run in {folder}", "wait for it, or use another run name"
        )
    try:
        yield
    finally:
        lock.release()


def add_checkpoint(
    state: TrainingState,
    new: CheckpointRecord,
    retention: RetentionPolicy,
    *,
    higher_is_better: bool,
    unacked: Sequence[int] = (),
) -> tuple[TrainingState, list[CheckpointRecord]]:
    """The state with one more checkpoint, and the checkpoints that are no longer kept.

    `unacked`: leases of later steps of an earlier process, whose batches this checkpoint does not contain.
    """
    best = new if _is_better(new, state.best, higher_is_better) else state.best
    checkpoints = [*state.kept, new]
    recent = checkpoints[-retention.last :]
    by_step = {checkpoint.step: checkpoint for checkpoint in (*checkpoints, state.best) if checkpoint}
    dropped = [
        checkpoint for checkpoint in by_step.values() if checkpoint not in recent and checkpoint != best
    ]
    settled = tuple(lease_id for lease_id in state.taken if lease_id not in unacked)
    return replace(state, kept=tuple(recent), best=best, taken=tuple(unacked), settled=settled), dropped


def update_score(
    state: TrainingState, step: int, value: float, *, higher_is_better: bool
) -> tuple[TrainingState, list[CheckpointRecord]]:
    """The state with an evaluation of the checkpoint of that step, and the checkpoints no longer kept.

    An evaluation of weights that are no checkpoint says nothing about those that are.
    """
    candidates = [checkpoint for checkpoint in state.kept if checkpoint.step == step]
    if not candidates or candidates[-1].evaluated:
        return state, []
    scored = candidates[-1]._replace(value=value, evaluated=True)
    kept_checkpoints = tuple(
        scored if checkpoint.step == scored.step else checkpoint for checkpoint in state.kept
    )
    state = replace(state, kept=kept_checkpoints)
    former_best = state.best if state.best and state.best.step != scored.step else None
    if not _is_better(scored, former_best, higher_is_better):
        return state, []
    steps = {checkpoint.step for checkpoint in state.kept}
    return replace(state, best=scored), [former_best] if former_best and former_best.step not in steps else []


def _is_better(new: CheckpointRecord, best: CheckpointRecord | None, higher: bool) -> bool:
    if new.value is None or not math.isfinite(new.value):
        return False
    if best is None or best.value is None:
        return True
    if new.evaluated != best.evaluated:
        return new.evaluated
    return new.value > best.value if higher else new.value < best.value


def _decode(text: str, path: Path) -> TrainingState:
    try:
        data = parse_object(text)
        if data.pop("format") != _FORMAT:
            raise HermesError(f"{path} was written by another version of Hermes", "use another run name")
        data["kept"] = tuple(CheckpointRecord(*record) for record in data["kept"])
        data["best"] = CheckpointRecord(*data["best"]) if data["best"] else None
        data |= {name: tuple(data[name]) for name in _LISTS if name in data}
        return TrainingState(**data)
    except (ValueError, KeyError, TypeError) as error:
        raise HermesError(f"{path} is damaged: {error}", "move it aside; the run then starts anew") from error
