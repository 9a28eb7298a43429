"""Every training loop shares these: the adapter, the state on disk, the metrics, the proof of training.

The loop makes the steps; the session publishes the weights as `step-N`, compares sampler and trainer, logs
the metrics, saves checkpoints and deletes those that the retention policy does not keep. A run may be killed
at any moment and started again: it then resumes from its last checkpoint.
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
    add_checkpoint,
    update_score,
)
from hermes.training.monitor import proof as probe
from hermes.training.monitor.batch_audit import BatchAudit
from hermes.training.monitor.incidents.starts import record_start
from hermes.training.monitor.machine_card import record_machine
from hermes.training.monitor.sinks import Sinks
from hermes.training.service.client import AdapterClient, EngineError, LoraSpec, ServiceConnection, is_ready

ProgressCallback = Callable[[str], None]
T = TypeVar("T")

STOPPED = "stopped"
"""The reason of a run that a signal ended; it resumes by its name."""
LIVE_SAMPLERS = 8
"""Published weights that are kept for rollouts in progress, besides those of checkpoints."""
_DELETED_TOGETHER = 8
"""Sampler weights that are deleted at once, after the samplers that score let go of them."""
_TRIES = 3
"""How often the engine may be lost without a new checkpoint in between."""
_PATIENCE_S = 120.0
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class TrainingRunSpec:
    """One training run, whatever its loop."""

    id: str
    folder: Path
    connection: ServiceConnection
    lora: LoraSpec
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a run."""

    step: int
    reason: str
    weights: str
    """To continue training from: tinker://…/weights/…"""
    sampler: str
    """To sample from: tinker://…/sampler_weights/…"""
    best: CheckpointRecord | None
    metrics: dict[str, float]
    """The metrics of this process's last step; empty if the run had ended before."""


class TrainingSession:
    """A training run in progress."""

    def __init__(
        self,
        run: TrainingRunSpec,
        state: TrainingState,
        client: AdapterClient,
        sinks: Sinks,
        *,
        higher_is_better: bool,
        on_publish: Callable[[str], None] = lambda path: None,
        live_samplers: int = LIVE_SAMPLERS,
        proof_ends_run: bool = True,
    ) -> None:
        """`higher_is_better`: for the score of a checkpoint. `on_publish` is called with the path of
        published weights, of which at least the last `live_samplers` are kept. `proof_ends_run`: what the
        proof finds is an error, not a warning."""
        self._on_publish = on_publish
        self._live_samplers = live_samplers
        self._proof_ends_run = proof_ends_run
        self.run = run
        self.state = state
        self.client = client
        self.sinks = sinks
        self.sampler = ""
        """The path of the weights that were published last."""
        self.metrics: dict[str, float] = {}
        """The metrics that were logged last."""
        self._higher_is_better = higher_is_better
        self._file = StateFile(run.folder)
        self._saved = state
        """The state on disk."""
        self._proof: probe.Proof | None = None
        self._publication: Callable[[], str] | None = None
        """Waits for the path of the weights that are being published."""
        self._probe_forward: Callable[[], list[list[float]]] | None = None
        """The trainer's reading of the probe, if it has begun."""
        self._audit: BatchAudit | None = None
        sinks.rewind(state.step)
        record_machine(run.folder)
        record_start(run.folder, state.step, state.finished)

    def write(self, **changes: Any) -> None:
        """Changes the state and writes it to disk."""
        self.update_state(**changes)
        self._save(self.state)

    def _save(self, state: TrainingState) -> None:
        self._file.write(state)
        self._saved = state

    def update_state(self, **changes: Any) -> None:
        """Changes the state in memory; it is written with the next checkpoint, which it belongs to."""
        self.state = replace(self.state, **changes)

    def begin_publish(self, step: int, *, read_probe: bool = False) -> None:
        """Begins what `publish` ends. `read_probe`: the trainer scores the probe meanwhile, for `prove`."""
        self._publication = self.client.begin_publish(f"step-{step}")
        if read_probe:
            self._probe_forward = self.client.begin_forward([self.state.probe])

    def publish(self, step: int) -> None:
        """Publishes the weights to samplers as `step-N`; rollouts report the name as their policy version."""
        if self._publication is None:
            self.begin_publish(step)
        assert self._publication is not None
        publication, self._publication = self._publication, None
        self.sampler = publication()
        self._on_publish(self.sampler)
        published = (*self.state.published, self.sampler)
        deleted: tuple[str, ...] = ()
        if len(published) >= self._live_samplers + _DELETED_TOGETHER:
            deleted, published = published[: -self._live_samplers], published[-self._live_samplers :]
        self.update_state(published=published)
        # Written immediately and alone, so that a resumed run can delete what a killed one left.
        self._save(replace(self._saved, published=published))
        self._delete_samplers(deleted)

    def samplers(self) -> list[str]:
        """The sampler weights that can still be sampled, oldest first."""
        checkpoints = (checkpoint.sampler for checkpoint in self.state.kept)
        return list(dict.fromkeys((*checkpoints, *self.state.published)))

    def _delete_samplers(self, paths: Sequence[str]) -> None:
        """Deletes sampler weights, except those of checkpoints."""
        checkpoints = {checkpoint.sampler for checkpoint in (*self.state.kept, self.state.best) if checkpoint}
        dropped = [path for path in paths if path not in checkpoints]
        if dropped:
            self.client.release_samplers()
        for path in dropped:
            self.client.delete(path)

    def begin_proof(self, tokens: Sequence[int]) -> None:
        """Takes the first reading; `tokens` become the probe, unless the run has one."""
        if not self.state.probe:
            self.write(probe=tuple(tokens[: probe.PROBE_TOKENS]))
        first, exact = self._reading(), self.client.rounds_nothing()
        repeated = self.client.forward([self.state.probe])[0]
        self._proof = probe.begin_proof(first, repeated, exact=exact)
        lora = self.run.lora
        self._audit = BatchAudit(
            self.client,
            self.samplers,
            lora.base_model,
            self._proof.unit,
            lora.seed,
            exact=exact,
            ends_run=self._proof_ends_run,
        )

    @property
    def audit(self) -> BatchAudit | None:
        """Compares the logprobs of rollouts with the weights that sampled them; None before
        `begin_proof`."""
        return self._audit

    @property
    def proof(self) -> probe.Proof | None:
        """None before `begin_proof`."""
        return self._proof

    def prove(self, *, pushed: bool) -> dict[str, float]:
        """After an update and its `publish`. ProofError ends the run."""
        assert self._proof is not None, "begin_proof comes first"
        try:
            return self._proof.judge(self._reading(), pushed=pushed)
        except probe.ProofError as error:
            if self._proof_ends_run:
                raise
            return error.warn()

    def _reading(self) -> probe.Reading:
        forward, self._probe_forward = self._probe_forward, None
        trainer = (forward or self.client.begin_forward([self.state.probe]))()[0]
        check_finite({"the logprob of a probe token": sum(trainer)})
        sampler = self.client.score(self.sampler, [self.state.probe])[0]
        return probe.Reading(trainer, sampler)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.metrics = self.sinks.write(step, values)

    def checkpoint_due(self, step: int, last_step: int) -> bool:
        """Whether a checkpoint is due at this step."""
        return step % self.run.retention.every == 0 or step >= last_step

    def checkpoint(
        self, step: int, value: float | None, unacked: Sequence[int] = (), *, evaluated: bool = False
    ) -> None:
        """Saves at the engine first, then in the state, then deletes what the retention policy drops.

        `unacked`: see `add_checkpoint`.
        """
        self.sinks.flush()
        record = CheckpointRecord(step, self.client.save(f"step-{step}"), self.sampler, value, evaluated)
        state, dropped = add_checkpoint(
            self.state,
            record,
            self.run.retention,
            higher_is_better=self._higher_is_better,
            unacked=unacked,
        )
        self._replace(state, dropped)

    def update_score(self, step: int, value: float) -> None:
        """Records an evaluation of the weights of this step."""
        state, dropped = update_score(self.state, step, value, higher_is_better=self._higher_is_better)
        self._replace(state, dropped)

    def _replace(self, state: TrainingState, dropped: Sequence[CheckpointRecord]) -> None:
        self._save(state)
        self.state = state
        if dropped:
            self.client.release_samplers()
        for checkpoint in dropped:
            self.client.delete(checkpoint.weights)
            if checkpoint.sampler not in state.published:  # else `publish` deletes it in its turn
                self.client.delete(checkpoint.sampler)

    def finish(self, reason: str) -> TrainResult:
        """Marks the run as ended; of the published weights, only checkpoints are kept."""
        self._delete_samplers(self.state.published)
        self.write(finished=reason, published=())
        return result_of(self.state, self.metrics)


def result_of(state: TrainingState, metrics: dict[str, float]) -> TrainResult:
    last = state.kept[-1]
    return TrainResult(last.step, state.finished or "", last.weights, last.sampler, state.best, metrics)


def retry_on_engine_loss(run: TrainingRunSpec, attempt: Callable[[], T], progress: ProgressCallback) -> T:
    """Runs the attempt, again if the engine was lost: at most three times without a new checkpoint."""
    file = StateFile(run.folder)
    losses, last_step = 0, _checkpoint_step(file)
    while True:
        try:
            return attempt()
        except EngineError as error:
            step = _checkpoint_step(file)
            losses = 1 if step != last_step else losses + 1
            if not error.lost or step is None or losses > _TRIES:
                raise
            last_step = step
            progress(f"the engine was lost ({error.message}); resuming from the last checkpoint")
        _await_engine(run.connection)


def _checkpoint_step(file: StateFile) -> int | None:
    """The step of the last checkpoint; None: the run has no state on disk."""
    state = file.state()
    return None if state is None else state.step


def _await_engine(connection: ServiceConnection) -> None:
    """Waits until it is ready: an engine accepts connections before it has loaded its model."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while connection.local and time.monotonic() < deadline_s and not is_ready(connection.url):
        time.sleep(_PAUSE_S)


_GO_BACK = "continue from the last checkpoint with a lower learning rate: --start, and another --name"
_CONVERGED_LOSS = 1e-6
"""Below this loss a zero gradient is expected."""


def check_finite(values: Mapping[str, float]) -> None:
    """HermesError if a metric is NaN or infinite: the weights are broken, or the next update breaks them."""
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    if bad:
        raise HermesError(f"{', '.join(sorted(bad))} is not a finite number", _GO_BACK)


def check_policy_gradient(advantages: Sequence[float], norm: float | None) -> None:
    """HermesError if the gradient is exactly 0 although trained tokens have advantages."""
    if norm == 0 and any(advantages):
        count = sum(advantage != 0 for advantage in advantages)
        raise HermesError(
            f"the gradient is 0 although {count} trained tokens have advantages: the update does nothing",
            "the engine drops the batch or its advantages, or the policy has collapsed to certainty: "
            "look at health/entropy; continue from an earlier checkpoint with a lower learning rate",
        )


def check_gradient(loss: float, norm: float | None) -> None:
    """HermesError if the gradient vanished although the loss has not: the weights have diverged."""
    if norm == 0 and loss > _CONVERGED_LOSS:
        raise HermesError(f"the gradient is 0 at a loss of {loss:.3g}: the weights have diverged", _GO_BACK)
