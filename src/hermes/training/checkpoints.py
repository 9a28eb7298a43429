"""Where a run stands, on disk: enough to go on exactly as if it had never been interrupted.

`training.json` in the run's folder is replaced whole, after the weights it points at are safe with the
engine. The order of data is a function of seed and step, so the step is also the state of every random
choice. Steps after the checkpoint are in `taken`: their batches are still the trainer's, and are trained
again in the same order, on top of the same weights. A batch is acknowledged once a checkpoint holds it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hermes.core.filelock import FileLock
from hermes.core.files import atomic_write, ensure_dir, read_text
from hermes.core.json import JSONObject
from hermes.errors import HermesError, UsageError

NAME = "training.json"
_FORMAT = 1
_LISTS = ("taken", "settled", "published", "probe")


class CheckpointRecord(NamedTuple):
    """One checkpoint."""

    step: int
    weights: str
    """To go on from: tinker://…/weights/…"""
    sampler: str
    """To sample from: tinker://…/sampler_weights/…"""
    value: float | None = None
    """Of the metric that decides which is best."""
    evaluated: bool = False
    """The value is an evaluation's: it counts before any that is not."""


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What `training.json` says."""

    kind: str
    """sft or rl."""
    settings: JSONObject
    """What the run was started with; another run may not go on from here."""
    kept: tuple[CheckpointRecord, ...] = ()
    """Checkpoints, oldest first; the last is where to go on."""
    best: CheckpointRecord | None = None
    taken: tuple[int, ...] = ()
    """Leases of the steps after the last checkpoint, in order."""
    settled: tuple[int, ...] = ()
    """Leases that the last checkpoint holds; whoever goes on from it acknowledges them, again if need be."""
    last_lease: int = 0
    """The newest one ever taken; 0: none."""
    probe: tuple[int, ...] = ()
    """The tokens by which sampler and trainer are compared."""
    best_loss: float | None = None
    """SFT: the lowest held-out loss up to the checkpoint."""
    waited: int = 0
    """SFT: evaluations since then."""
    finished: str | None = None
    """Why it ended, once it has."""
    published: tuple[str, ...] = ()
    """Sampler weights that are there still, oldest first; some may be those of checkpoints."""

    @property
    def step(self) -> int:
        return self.kept[-1].step if self.kept else 0

    @property
    def weights(self) -> str | None:
        return self.kept[-1].weights if self.kept else None


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which checkpoints stay."""

    every: int = 25
    """Steps between two."""
    last: int = 3
    """How many stay, beside the best one."""


class StateFile:
    """The file of one run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def read(self, kind: str, settings: Mapping[str, object]) -> TrainingState:
        """The run as it stands; a new one if there is none. UsageError if another run lives here."""
        text = read_text(self.path)
        wanted = json.loads(json.dumps(dict(settings)))
        if text is None:
            return TrainingState(kind, wanted)
        state = _decode(text, self.path)
        changed = [name for name in wanted if state.settings.get(name) != wanted[name]]
        if state.kind != kind:
            changed = ["kind"]
        if changed:
            raise UsageError(
                f"{self.path.parent} holds a run with another {', '.join(changed)}",
                "use another run name, or the settings it was started with",
            )
        return replace(state, settings=wanted)

    def state(self) -> TrainingState | None:
        """As it stands, whichever run it is; None: the run never got anywhere."""
        text = read_text(self.path)
        return None if text is None else _decode(text, self.path)

    def write(self, state: TrainingState) -> None:
        atomic_write(self.path, json.dumps({"format": _FORMAT, **asdict(state)}, indent=1) + "\n")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One trainer for each run: two would train on the same batches. The lock goes with the process."""
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


def added(
    state: TrainingState,
    new: CheckpointRecord,
    keep: RetentionPolicy,
    *,
    higher_is_better: bool,
    owed: Sequence[int] = (),
) -> tuple[TrainingState, list[CheckpointRecord]]:
    """The state with one more checkpoint, and the checkpoints that nobody needs any more.

    `owed`: leases of later steps, taken by a former life of the run, that this checkpoint does not hold.
    """
    best = new if _better(new, state.best, higher_is_better) else state.best
    every = [*state.kept, new]
    stays = every[-keep.last :]
    former = {one.step: one for one in (*every, *([state.best] if state.best else []))}
    gone = [one for one in former.values() if one not in stays and one != best]
    held = tuple(lease_id for lease_id in state.taken if lease_id not in owed)
    return replace(state, kept=tuple(stays), best=best, taken=tuple(owed), settled=held), gone


def revalued(
    state: TrainingState, step: int, value: float, *, higher_is_better: bool
) -> tuple[TrainingState, list[CheckpointRecord]]:
    """The state once the newest checkpoint up to that step was evaluated, and what nobody needs any more."""
    found = [one for one in state.kept if one.step <= step][-1:]
    if not found or found[0].evaluated:
        return state, []
    new = found[0]._replace(value=value, evaluated=True)
    state = replace(state, kept=tuple(new if one.step == new.step else one for one in state.kept))
    rival = state.best if state.best and state.best.step != new.step else None
    if not _better(new, rival, higher_is_better):
        return state, []
    stays = {one.step for one in state.kept}
    return replace(state, best=new), [rival] if rival and rival.step not in stays else []


def _better(new: CheckpointRecord, best: CheckpointRecord | None, higher: bool) -> bool:
    if new.value is None or not math.isfinite(new.value):
        return False
    if best is None or best.value is None:
        return True
    if new.evaluated != best.evaluated:
        return new.evaluated
    return new.value > best.value if higher else new.value < best.value


def _decode(text: str, path: Path) -> TrainingState:
    try:
        data = json.loads(text)
        if data.pop("format") != _FORMAT:
            raise HermesError(f"{path} was written by another version of Hermes", "use another run name")
        data["kept"] = tuple(CheckpointRecord(*one) for one in data["kept"])
        data["best"] = CheckpointRecord(*data["best"]) if data["best"] else None
        data |= {name: tuple(data[name]) for name in _LISTS if name in data}
        return TrainingState(**data)
    except (ValueError, KeyError, TypeError) as error:
        raise HermesError(f"{path} is damaged: {error}", "move it aside; the run then starts anew") from error
