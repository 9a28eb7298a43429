"""What every training loop needs around it: the adapter, the state on disk, the numbers, the proof.

A loop says which step it has made; the session publishes the weights under `step-N`, compares sampler and
trainer, writes the numbers, keeps checkpoints and throws away those that nobody needs. It can be left at any
moment, by any means, and entered again: it then stands at the last checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hermes.errors import HermesError
from hermes.training.checkpoints import (
    CheckpointRecord,
    RetentionPolicy,
    StateFile,
    TrainingState,
    added,
    revalued,
)
from hermes.training.monitor import proof as probe
from hermes.training.monitor.sinks import Sinks
from hermes.training.service.client import AdapterClient, EngineError, LoraSpec, ServiceConnection, answers

ProgressCallback = Callable[[str], None]
T = TypeVar("T")

_LIVE_SAMPLERS = 8
"""Published weights that stay for rollouts under way, beside those of checkpoints."""
_TRIES = 3
"""How often an engine may be lost without a checkpoint in between."""
_PATIENCE_S = 120.0
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class TrainingRunSpec:
    """One training run, whatever its loop."""

    id: str
    folder: Path
    connection: ServiceConnection
    wish: LoraSpec
    keep: RetentionPolicy = field(default_factory=RetentionPolicy)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run leaves."""

    step: int
    reason: str
    weights: str
    """To train on from: tinker://…/weights/…"""
    sampler: str
    """To sample: tinker://…/sampler_weights/…"""
    best: CheckpointRecord | None
    metrics: dict[str, float]
    """Of the last step made now; empty if the run had ended before."""


class TrainingSession:
    """A run while it is under way."""

    def __init__(
        self,
        run: TrainingRunSpec,
        state: TrainingState,
        trainee: AdapterClient,
        sinks: Sinks,
        *,
        higher: bool,
        show: Callable[[str], None] = lambda path: None,
    ) -> None:
        """`higher`: of two checkpoints the one with the higher value is better. `show` hears what is
        published."""
        self._show = show
        self.run = run
        self.state = state
        self.trainee = trainee
        self.sinks = sinks
        self.sampler = ""
        """What was published last."""
        self.metrics: dict[str, float] = {}
        """What was logged last."""
        self._higher = higher
        self._file = StateFile(run.folder)
        self._saved = state
        """What is on disk."""
        self._proof: probe.Proof | None = None
        sinks.rewind(state.step)

    def write(self, **changes: Any) -> None:
        """Changes the state, on disk."""
        self.note(**changes)
        self._save(self.state)

    def _save(self, state: TrainingState) -> None:
        self._file.write(state)
        self._saved = state

    def note(self, **changes: Any) -> None:
        """Changes the state; on disk with the next checkpoint, so that it never says more than that one."""
        self.state = replace(self.state, **changes)

    def publish(self, step: int) -> None:
        """The sampler gets the weights of this step; rollouts name it as the version that sampled them."""
        self.sampler = self.trainee.publish(f"step-{step}")
        self._show(self.sampler)
        every = (*self.state.published, self.sampler)
        self.note(published=every[-_LIVE_SAMPLERS:])
        # On disk at once, and nothing else with it: whoever goes on after a kill knows what is left.
        self._save(replace(self._saved, published=self.state.published))
        self._forget(every[:-_LIVE_SAMPLERS])

    def _forget(self, samplers: Sequence[str]) -> None:
        """These are not sampled any more: all but those of checkpoints go."""
        kept = {one.sampler for one in (*self.state.kept, *([self.state.best] if self.state.best else []))}
        for path in samplers:
            if path not in kept:
                self.trainee.delete(path)

    def begin_proof(self, tokens: Sequence[int]) -> None:
        """The first reading; `tokens` become the probe, unless the run has one."""
        if not self.state.probe:
            self.write(probe=tuple(tokens[: probe.PROBE_TOKENS]))
        first = self._reading()
        self._proof = probe.begin(first, self.trainee.forward([self.state.probe])[0])

    @property
    def proof(self) -> probe.Proof | None:
        """None before `begin_proof`."""
        return self._proof

    def prove(self, *, pushed: bool) -> dict[str, float]:
        """After an update and its `publish`. ProofError ends the run."""
        assert self._proof is not None, "begin_proof comes first"
        return self._proof.judge(self._reading(), pushed=pushed)

    def _reading(self) -> probe.Reading:
        trainer = self.trainee.forward([self.state.probe])[0]
        check_finite({"the logprob of a probe token": sum(trainer)})
        sampler = self.trainee.score(self.sampler, [self.state.probe])[0]
        return probe.Reading(trainer, sampler)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.metrics = self.sinks.write(step, values)

    def due(self, step: int, last_step: int) -> bool:
        """Whether this step is to be a checkpoint."""
        return step % self.run.keep.every == 0 or step >= last_step

    def checkpoint(
        self, step: int, value: float | None, owed: Sequence[int] = (), *, evaluated: bool = False
    ) -> None:
        """Safe with the engine first, then in the state; then what it replaces goes. `owed`: see `added`."""
        kept = CheckpointRecord(step, self.trainee.save(f"step-{step}"), self.sampler, value, evaluated)
        state, gone = added(self.state, kept, self.run.keep, higher_is_better=self._higher, owed=owed)
        self._replace(state, gone)

    def revalue(self, step: int, value: float) -> None:
        """An evaluation of the weights of this step has come in."""
        state, gone = revalued(self.state, step, value, higher_is_better=self._higher)
        self._replace(state, gone)

    def _replace(self, state: TrainingState, gone: Sequence[CheckpointRecord]) -> None:
        self._save(state)
        self.state = state
        for one in gone:
            self.trainee.delete(one.weights)
            self.trainee.delete(one.sampler)

    def finished(self, reason: str) -> TrainResult:
        """Marks the run as ended; of what was published, only checkpoints stay."""
        self._forget(self.state.published)
        self.write(finished=reason, published=())
        return outcome(self.state, self.metrics)


def outcome(state: TrainingState, metrics: dict[str, float]) -> TrainResult:
    last = state.kept[-1]
    return TrainResult(last.step, state.finished or "", last.weights, last.sampler, state.best, metrics)


def carry_on(run: TrainingRunSpec, attempt: Callable[[], T], tell: ProgressCallback) -> T:
    """Runs the attempt; begins again from the last checkpoint when the engine was lost, a few times."""
    file = StateFile(run.folder)
    lost, before = 0, _reached(file)
    while True:
        try:
            return attempt()
        except EngineError as error:
            now = _reached(file)
            lost = 1 if now != before else lost + 1
            if not error.lost or now is None or lost > _TRIES:
                raise
            before = now
            tell(f"the engine was lost ({error.message}); going on from the last checkpoint")
        _await_engine(run.connection)


def _reached(file: StateFile) -> int | None:
    """The step of the last checkpoint; None: the run never got anywhere."""
    state = file.state()
    return None if state is None else state.step


def _await_engine(connection: ServiceConnection) -> None:
    """One that is coming up listens before it has loaded its model, so it is asked rather than knocked at."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while connection.local and time.monotonic() < deadline_s and not answers(connection.url):
        time.sleep(_PAUSE_S)


_GO_BACK = "go on from the last checkpoint with a lower learning rate: --start, and another --name"
_LEARNED = 1e-6
"""A loss at which no gradient is no wonder."""


def check_finite(values: Mapping[str, float]) -> None:
    """HermesError if a number says that the weights are, or are about to be, lost."""
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        raise HermesError(f"{', '.join(sorted(bad))} is not a finite number", _GO_BACK)


def check_gradient(loss: float, norm: float | None) -> None:
    """HermesError if there is something to learn and nothing that could: the weights have run away."""
    if norm == 0 and loss > _LEARNED:
        raise HermesError(
            f"the gradient is 0 at a loss of {loss:.3g}: the weights no longer answer", _GO_BACK
        )
