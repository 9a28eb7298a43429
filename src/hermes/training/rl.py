"""Learning from scored rollouts: one loop for GRPO and PPO, whatever the loss.

Takes batches from the trajectory API under a lease, computes advantages, updates the adapter through the
Tinker API, and publishes the new weights, which environments sample from that moment on. A batch is
acknowledged when a checkpoint holds its step; batches of later steps are noted on disk and trained again, in
the same order, by whoever goes on. So a kill at any moment loses no batch and trains none twice.

A trainer without a batch waits as long as an environment is connected. Without one it waits for the patience
that the settings state, saves what it has trained, and ends with the reason.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from hermes.core.json import JSONObject
from hermes.training.checkpoints import StateFile, alone
from hermes.training.data.api import DEFAULT_URL, LEASE_S, LeasedBatch, NoBatch, TrainerApi
from hermes.training.data.batch import BatchConfig, TrainBatch, prepare, with_penalty
from hermes.training.data.correction import IMPORTANCE_SAMPLING
from hermes.training.data.waiting import ENV_PATIENCE_S, BatchWait, NoEnvironmentError
from hermes.training.distill import Teacher, ask
from hermes.training.monitor.eval_watcher import EvalWatcher
from hermes.training.monitor.sinks import Sinks
from hermes.training.monitor.stall_guard import StallGuard
from hermes.training.schedule import Schedule
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import (
    ProgressCallback,
    TrainingRunSpec,
    TrainingSession,
    TrainResult,
    carry_on,
    outcome,
)
from hermes.training.update import Update

KIND = "rl"
_POLL_S = 0.2

Evaluate = Callable[[int, str], dict[str, float]]
"""Step and sampler path → numbers, which are logged as eval/NAME."""


@dataclass(frozen=True, slots=True)
class RlTrainerConfig:
    schedule: Schedule
    num_steps: int
    batch_size: int = 128
    """Sequences a batch."""
    loss: str = IMPORTANCE_SAMPLING
    cap: float | None = 2.0
    """Most that a token is weighed by for the mismatch of sampler and trainer; None: no correction."""
    clip: tuple[float, float] | None = None
    """Bounds of the ratio, for ppo and cispo; None: the engine's own."""
    epochs: int = 1
    """Updates from one batch."""
    kl: float = 0.0
    """Weight of the penalty for leaving the base model; 0: there is none."""
    rules: BatchConfig = field(default_factory=BatchConfig)
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    eval_every: int = 25
    api_url: str = DEFAULT_URL
    api_patience_s: float = 60.0
    env_patience_s: float = ENV_PATIENCE_S
    """How long the trainer waits for a batch while no environment is connected."""
    lease_s: float = LEASE_S
    """Time limit of a batch's lease; it is renewed while the trainer lives."""
    project: str = "hermes"
    wandb_group: str | None = None
    """What environments group their own metrics by; None: the run's name."""


@dataclass(frozen=True, slots=True)
class OpenAIProxyConfig:
    """An OpenAI face to be offered by the trainer."""

    port: int
    tokenizer: str
    """Where transformers finds the base model's."""


@dataclass(frozen=True, slots=True)
class RunServices:
    """What a loop talks to besides engine and API."""

    sinks: Sinks
    tell: ProgressCallback
    stop: threading.Event = field(default_factory=threading.Event)
    """Set: finish the step, save, and end."""
    evaluate: Evaluate | None = None
    held_out: EvalWatcher = field(default_factory=lambda: EvalWatcher(None))
    """Evaluations that the environment makes by itself."""
    teacher: Teacher | None = None
    face: OpenAIProxyConfig | None = None
    """Where environments can sample the newest weights, if the engine or service has no such face itself."""


def train(run: TrainingRunSpec, settings: RlTrainerConfig, around: RunServices) -> TrainResult:
    """Trains to the end, from wherever the run stands."""
    with alone(run.folder):
        return carry_on(run, lambda: _attempt(run, settings, around), around.tell)


def _attempt(run: TrainingRunSpec, settings: RlTrainerConfig, around: RunServices) -> TrainResult:
    file = StateFile(run.folder)
    state = file.read(KIND, _identity(run, settings))
    if state.finished and state.step >= settings.num_steps:
        return outcome(state, {})
    with (
        TrainerApi(settings.api_url, settings.api_patience_s, settings.lease_s) as api,
        closing(TokenMeter(run.folder)) as meter,
        AdapterClient(run.connection, run.wish, meter, state.weights) as trainee,
        _shown(run, around.face, meter) as show,
    ):
        session = TrainingSession(run, state, trainee, around.sinks, higher=True, show=show)
        session.write(finished=None)
        session.publish(state.step)
        for lease_id in state.settled:
            api.acknowledge(lease_id)
        api.register(_registration(run, settings, state.step))
        api.keep_leases(state.taken)
        return _RlLoop(session, api, settings, around).run()


@contextmanager
def _shown(
    run: TrainingRunSpec, offer: OpenAIProxyConfig | None, meter: TokenMeter
) -> Iterator[Callable[[str], None]]:
    """Whom to tell what was published."""
    if offer is None:
        yield lambda path: None
        return
    from hermes.training.service.openai_proxy import offered

    with offered(run.connection, run.wish.base_model, offer.tokenizer, offer.port, meter) as face:
        yield face.show


class _RlLoop:
    def __init__(
        self, session: TrainingSession, api: TrainerApi, settings: RlTrainerConfig, around: RunServices
    ) -> None:
        self._session = session
        self._api = api
        self._settings = settings
        self._around = around
        self._owed = list(session.state.taken)
        """Leases of steps that a former life of this run made after its last checkpoint."""
        self._update = Update(session.trainee, settings)
        self._held: list[LeasedBatch] = []
        """Leased to us, and not yet noted."""
        self._fruitless = StallGuard(learned=session.state.step > 0)
        self._rewards: list[float] = []
        """Of the steps since the last checkpoint."""
        around.held_out.published(session.state.step)

    def run(self) -> TrainResult:
        session, last = self._session, self._settings.num_steps
        step = session.state.step
        while step < last:
            try:
                batch = self._next(step)
            except NoEnvironmentError:
                if step > session.state.step:
                    self._checkpoint(step, {})
                raise
            if batch is None:
                break
            step += 1
            values = self._step(step, batch)
            session.log(step, values)
            self._around.tell(_line(step, last, values))
            if session.due(step, last):
                self._checkpoint(step, values)
        if step > session.state.step or not session.state.kept:
            self._checkpoint(step, {})
        if step >= last:
            self._fruitless.conclude()
        return session.finished("all steps made" if step >= last else "stopped")

    def _next(self, step: int) -> LeasedBatch | None:
        """The batch after this many steps, noted on disk; None when the run is to stop."""
        stop = self._around.stop
        wait = BatchWait(self._settings.env_patience_s)
        while not stop.is_set():
            batch = self._take()
            if isinstance(batch, LeasedBatch):
                return batch
            if (line := wait.line_if_due(batch)) is not None:
                self._around.tell(f"step {step}: {line}")
            stop.wait(_POLL_S)
        return None

    def _take(self) -> LeasedBatch | NoBatch:
        while self._owed:
            lease_id = self._owed.pop(0)
            redelivered = self._api.again(lease_id)
            if redelivered is not None:
                return redelivered
            self._around.tell(f"the API has lost the batch of lease {lease_id}; going on without it")
            remaining = tuple(taken for taken in self._session.state.taken if taken != lease_id)
            self._session.write(taken=remaining)
        state = self._session.state
        batch = self._held.pop(0) if self._held else self._fresh(state.last_lease)
        if isinstance(batch, NoBatch):
            return batch
        # An API without a memory counts from 1 again: only what is served again is what we had.
        if batch.redelivered and batch.lease_id in state.settled:
            self._api.acknowledge(batch.lease_id)
            return NoBatch("the API served a batch again that is trained already")
        if batch.redelivered and batch.lease_id in state.taken:
            return NoBatch("the API served a batch again that is being trained")
        self._session.write(taken=(*state.taken, batch.lease_id), last_lease=batch.lease_id)
        return batch

    def _fresh(self, last_lease: int) -> LeasedBatch | NoBatch:
        """The batch after `last_lease`, also one that was served before and got lost on the way."""
        lost = self._api.again(last_lease + 1) if last_lease else None
        batch = lost or self._api.next_batch()
        if isinstance(batch, LeasedBatch) and last_lease and batch.lease_id > last_lease + 1:
            missed = [self._api.again(lease_id) for lease_id in range(last_lease + 1, batch.lease_id)]
            first, *self._held = [*(skipped for skipped in missed if skipped is not None), batch]
            return first
        return batch

    def _step(self, step: int, batch: LeasedBatch) -> dict[str, float]:
        began_s = time.monotonic()
        session, settings = self._session, self._settings
        prepared = self._prepare(batch, step - 1)
        values = {**prepared.metrics, "data/lease_id": float(batch.lease_id)}
        rate = settings.schedule.at(step)
        values["train/learning_rate"] = rate
        if prepared.items:
            if session.proof is None:
                session.begin_proof(prepared.items[0].rollout.tokens)
            values |= self._update.make(prepared.items, step, rate, session.proof)
        session.publish(step)
        self._around.held_out.published(step)
        if prepared.items:
            values |= session.prove(pushed=rate > 0 and values.get("optim/grad_norm", 1.0) > 0)
        due = step % settings.eval_every == 0 or session.due(step, settings.num_steps)
        if self._around.evaluate is not None and due:
            told = self._around.evaluate(step, session.sampler)
            values |= {f"eval/{name}": value for name, value in told.items()}
        values["time/step_s"] = time.monotonic() - began_s
        self._rewards += [values["reward/mean"]] if "reward/mean" in values else []
        return values

    def _prepare(self, batch: LeasedBatch, step: int) -> TrainBatch:
        settings, groups = self._settings, batch.groups
        if self._around.teacher is not None:
            groups = ask(self._around.teacher, groups)
        prepared = prepare(groups, settings.rules, step)
        self._fruitless.judge(prepared)
        if not settings.kl or not prepared.items:
            return prepared
        unknown = [item.rollout.tokens for item in prepared.items if item.rollout.reference is None]
        scored = iter(self._session.trainee.score(self._session.run.wish.base_model, unknown))
        references = [item.rollout.reference or next(scored) for item in prepared.items]
        items, drift = with_penalty(prepared.items, references, settings.kl)
        return replace(prepared, items=tuple(items), metrics={**prepared.metrics, "kl/reference": drift})

    def _checkpoint(self, step: int, values: dict[str, float]) -> None:
        """What is best is decided by one quantity: an evaluation's, where there is one."""
        found = self._around.held_out.newest()
        if found is not None:
            self._session.revalue(found.step, found.value)
        rewards, self._rewards = self._rewards, []
        value = statistics.fmean(rewards) if rewards else None
        evaluated = self._around.evaluate is not None
        self._session.checkpoint(
            step, values.get("eval/reward") if evaluated else value, self._owed, evaluated=evaluated
        )
        for lease_id in self._session.state.settled:
            self._api.acknowledge(lease_id)


def _identity(run: TrainingRunSpec, settings: RlTrainerConfig) -> JSONObject:
    wish = run.wish
    return {
        "base_model": wish.base_model,
        "rank": wish.rank,
        "seed": wish.seed,
        "start": wish.start,
        "batch_size": settings.batch_size,
        "loss": settings.loss,
    }


def _registration(run: TrainingRunSpec, settings: RlTrainerConfig, step: int) -> JSONObject:
    return {
        "wandb_group": settings.wandb_group or run.id,
        "wandb_project": settings.project,
        "batch_size": settings.batch_size,
        "max_token_len": settings.rules.max_tokens,
        "checkpoint_dir": str(run.folder),
        "save_checkpoint_interval": run.keep.every,
        "starting_step": step,
        "num_steps": settings.num_steps,
    }


def _line(step: int, last: int, values: dict[str, float]) -> str:
    told = f"step {step}/{last}"
    if "reward/mean" in values:
        told += f"  reward {values['reward/mean']:.3f}"
    told += f"  signal {values['health/group_signal']:.0%}"
    if "train/loss" in values:
        told += f"  loss {values['train/loss']:+.4f}  gap {values['probe/gap']:.1e}"
    return f"{told}  {values['time/step_s']:.2f} s"
