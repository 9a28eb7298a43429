"""Training on rows that exist before the run: one loop for SFT, DPO, KTO and reward models.

An objective says what one step does with its rows; the loop does the rest: optimizer, schedule, held-out
evaluation, early stopping, proof of training, checkpoints. The rows of a step are a function of seed and
step, so a run that is killed and started again makes the same steps with the same losses.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hermes.core.json import JSONObject
from hermes.training.checkpoints import StateFile, exclusive_lock
from hermes.training.monitor.step_pace import StepPace
from hermes.training.schedule import Schedule
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import (
    STOPPED,
    ProgressCallback,
    TrainingRunSpec,
    TrainingSession,
    TrainResult,
    check_finite,
    check_gradient,
    result_of,
    retry_on_engine_loss,
)

if TYPE_CHECKING:
    from hermes.training.monitor.sinks import Sinks

Row = TypeVar("Row")
_PROVED_STEPS = 3
"""The first steps; after them the proof is made at each checkpoint."""
LOSS, EVAL_LOSS = "train/loss", "eval/loss"


@dataclass(frozen=True, slots=True)
class OfflineSettings:
    schedule: Schedule
    epochs: int = 1
    batch_size: int = 16
    """Rows a step."""
    max_steps: int | None = None
    """None: all steps of the epochs."""
    eval_every: int = 10
    """Steps between two evaluations on the held-out rows."""
    patience: int | None = None
    """Evaluations without a new best loss that end the run; None: no early stopping."""
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0


class OfflineObjective(ABC, Generic[Row]):
    """The objective of a training, and its rows."""

    kind: str
    """The kind of run in the state file."""

    def __init__(self, train: Sequence[Row], held_out: Sequence[Row] = ()) -> None:
        self.train = train
        self.held_out = held_out

    @property
    @abstractmethod
    def probe(self) -> Sequence[int]:
        """The tokens on which trainer and sampler are compared."""

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, object]:
        """The facts that a resumed run shares with the one on disk, beside its adapter and batch size."""

    def prepare(self, run: TrainingRunSpec, client: AdapterClient) -> None:
        """Called before the first step, and again after the engine was lost."""

    def close(self) -> None:
        """Frees what `prepare` opened."""

    @abstractmethod
    def accumulate(self, client: AdapterClient, step: int, seed: int, batch_size: int) -> dict[str, float]:
        """Adds the gradients of one step; its metrics, with `train/loss`."""

    @abstractmethod
    def evaluate(self, client: AdapterClient) -> dict[str, float]:
        """Metrics of the held-out rows, with `eval/loss`; called only if there are any."""

    def describe(self, metrics: Mapping[str, float]) -> str:
        """The text that the progress line shows beside the losses; may be empty."""
        return ""


def steps_of(rows: int, settings: OfflineSettings) -> int:
    """How many steps the run has."""
    per_epoch = -(-rows // settings.batch_size)
    whole = per_epoch * settings.epochs
    return whole if settings.max_steps is None else min(whole, settings.max_steps)


def rows_of_step(rows: Sequence[Row], step: int, batch_size: int, seed: int) -> list[Row]:
    """The rows of a step, counted from 1: every epoch has each once, in its own order."""
    per_epoch = -(-len(rows) // batch_size)
    epoch, position = divmod(step - 1, per_epoch)
    order = list(range(len(rows)))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return [rows[index] for index in order[position * batch_size : (position + 1) * batch_size]]


def train_offline(
    run: TrainingRunSpec,
    objective: OfflineObjective[Any],
    settings: OfflineSettings,
    sinks: Sinks,
    progress: ProgressCallback,
    stop: threading.Event | None = None,
) -> TrainResult:
    """Trains to the end, from the last checkpoint. `stop`, once set: finish the step, save, and end."""
    ending = stop or threading.Event()
    with exclusive_lock(run.folder):
        return retry_on_engine_loss(
            run, lambda: _attempt(run, objective, settings, sinks, progress, ending), progress
        )


def _attempt(
    run: TrainingRunSpec,
    objective: OfflineObjective[Any],
    settings: OfflineSettings,
    sinks: Sinks,
    progress: ProgressCallback,
    stop: threading.Event,
) -> TrainResult:
    state = StateFile(run.folder).read(objective.kind, _identity(run, objective, settings))
    last = steps_of(len(objective.train), settings)
    if state.finished and state.step >= last:
        return result_of(state, {})
    with (
        closing(TokenMeter(run.folder)) as meter,
        AdapterClient(run.connection, run.lora, meter, state.weights) as client,
        closing(objective),
    ):
        session = TrainingSession(run, state, client, sinks, higher_is_better=False)
        session.write(finished=None)
        session.publish(state.step)
        objective.prepare(run, client)
        session.begin_proof(objective.probe)
        return _OfflineLoop(session, objective, settings, last, progress, stop).run()


class _OfflineLoop:
    def __init__(
        self,
        session: TrainingSession,
        objective: OfflineObjective[Any],
        settings: OfflineSettings,
        last: int,
        progress: ProgressCallback,
        stop: threading.Event,
    ) -> None:
        self._session = session
        self._objective = objective
        self._settings = settings
        self._last = last
        self._progress = progress
        self._stop = stop
        self._pace = StepPace(last)

    def run(self) -> TrainResult:
        session = self._session
        for step in range(session.state.step + 1, self._last + 1):
            due = session.checkpoint_due(step, self._last)
            metrics = self._step(step, due)
            stop_reason = self._stop_reason(step)
            due = due or stop_reason is not None or (EVAL_LOSS in metrics and session.state.waited == 0)
            if due or step <= _PROVED_STEPS:
                session.publish(step)
                pushed = metrics["train/learning_rate"] > 0 and metrics.get("optim/grad_norm", 1.0) > 0
                metrics |= session.prove(pushed=pushed)
            session.log(step, metrics)
            self._progress(self._progress_line(step, metrics))
            if due:
                session.checkpoint(step, metrics.get(EVAL_LOSS))
            if stop_reason is not None:
                return session.finish(stop_reason)
        return session.finish("all steps made")

    def _step(self, step: int, due: bool) -> dict[str, float]:
        began_s = time.monotonic()
        settings, client = self._settings, self._session.client
        metrics = self._objective.accumulate(client, step, self._session.run.lora.seed, settings.batch_size)
        rate = settings.schedule.at(step)
        metrics["train/learning_rate"] = rate
        check_finite(metrics)
        optimizer = client.optim_step(rate, settings.beta1, settings.beta2, settings.clip_norm)
        metrics |= {f"optim/{name.partition(':')[0]}": value for name, value in optimizer.items()}
        check_gradient(metrics[LOSS], metrics.get("optim/grad_norm"))
        if self._objective.held_out and (step % settings.eval_every == 0 or due):
            metrics |= self._evaluate()
        metrics["time/step_s"] = time.monotonic() - began_s
        return metrics

    def _evaluate(self) -> dict[str, float]:
        metrics = self._objective.evaluate(self._session.client)
        loss, best = metrics[EVAL_LOSS], self._session.state.best_loss
        if best is None or loss < best:
            self._session.update_state(best_loss=loss, waited=0)
        else:
            self._session.update_state(waited=self._session.state.waited + 1)
        return metrics

    def _stop_reason(self, step: int) -> str | None:
        """Why the run ends after this step, although there are more; None: it does not."""
        patience = self._settings.patience
        if patience is not None and self._session.state.waited >= patience:
            return "held-out loss stopped falling"
        return STOPPED if self._stop.is_set() and step < self._last else None

    def _progress_line(self, step: int, metrics: Mapping[str, float]) -> str:
        line = f"step {step}/{self._last}  loss {metrics[LOSS]:.4f}"
        if EVAL_LOSS in metrics:
            line += f"  held-out {metrics[EVAL_LOSS]:.4f}"
        details = self._objective.describe(metrics)
        figures = f"{line}{'  ' if details else ''}{details}  {metrics['time/step_s']:.2f} s"
        return figures + self._pace.left(step)


def _identity(
    run: TrainingRunSpec, objective: OfflineObjective[Any], settings: OfflineSettings
) -> JSONObject:
    identity: JSONObject = {
        "base_model": run.lora.base_model,
        "rank": run.lora.rank,
        "seed": run.lora.seed,
        "start": run.lora.start,
        **run.lora.changed_shape(),
        **objective.identity,
        "batch_size": settings.batch_size,
    }
    return identity
