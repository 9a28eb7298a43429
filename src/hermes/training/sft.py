"""Supervised fine-tuning over the Tinker API: learn what the assistant said, stop when held-out loss says so.

The loss is the mean over the learned tokens of a batch. Which lessons a step gets is a function of seed and
step, so a run that is killed and started again makes the same steps with the same losses.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.core.json import JSONObject
from hermes.training.checkpoints import StateFile, alone
from hermes.training.data.correction import LossSpec
from hermes.training.data.datums import weighted
from hermes.training.data.sft_examples import SftExample, SftExamples
from hermes.training.schedule import Schedule
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import (
    ProgressCallback,
    TrainingRunSpec,
    TrainingSession,
    TrainResult,
    carry_on,
    check_finite,
    check_gradient,
    outcome,
)

if TYPE_CHECKING:
    import tinker

    from hermes.training.monitor.sinks import Sinks

KIND = "sft"
_LOSS = LossSpec("cross_entropy", {})
_PROVED_STEPS = 3
"""The first ones; later the proof comes with each checkpoint."""


@dataclass(frozen=True, slots=True)
class SftSettings:
    schedule: Schedule
    epochs: int = 1
    batch_size: int = 16
    """Sequences a step."""
    max_steps: int | None = None
    """None: as many as the epochs have."""
    eval_every: int = 10
    """Steps between two evaluations on the held-out lessons."""
    patience: int | None = None
    """Evaluations without a new best one that end the run; None: none do."""
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0


def steps_of(lessons: int, settings: SftSettings) -> int:
    """How many steps the run has."""
    per_epoch = -(-lessons // settings.batch_size)
    whole = per_epoch * settings.epochs
    return whole if settings.max_steps is None else min(whole, settings.max_steps)


def train(
    run: TrainingRunSpec,
    lessons: SftExamples,
    settings: SftSettings,
    sinks: Sinks,
    tell: ProgressCallback,
    stop: threading.Event | None = None,
) -> TrainResult:
    """Trains to the end, from wherever the run stands. `stop`, once set: finish the step, save, and end."""
    ending = stop or threading.Event()
    with alone(run.folder):
        return carry_on(run, lambda: _attempt(run, lessons, settings, sinks, tell, ending), tell)


def _attempt(
    run: TrainingRunSpec,
    lessons: SftExamples,
    settings: SftSettings,
    sinks: Sinks,
    tell: ProgressCallback,
    stop: threading.Event,
) -> TrainResult:
    state = StateFile(run.folder).read(KIND, _identity(run, lessons.train, settings))
    last = steps_of(len(lessons.train), settings)
    if state.finished and state.step >= last:
        return outcome(state, {})
    with (
        closing(TokenMeter(run.folder)) as meter,
        AdapterClient(run.connection, run.wish, meter, state.weights) as trainee,
    ):
        session = TrainingSession(run, state, trainee, sinks, higher=False)
        session.write(finished=None)
        session.publish(state.step)
        session.begin_proof(lessons.train[0].tokens)
        return _SftLoop(session, lessons, settings, last, tell, stop).run()


class _SftLoop:
    def __init__(
        self,
        session: TrainingSession,
        lessons: SftExamples,
        settings: SftSettings,
        last: int,
        tell: ProgressCallback,
        stop: threading.Event,
    ) -> None:
        self._session = session
        self._lessons = lessons
        self._settings = settings
        self._last = last
        self._tell = tell
        self._stop = stop

    def run(self) -> TrainResult:
        session = self._session
        for step in range(session.state.step + 1, self._last + 1):
            due = session.due(step, self._last)
            values = self._step(step, due)
            ended = self._ended(step)
            due = due or ended is not None or ("eval/loss" in values and session.state.waited == 0)
            if due or step <= _PROVED_STEPS:
                session.publish(step)
                pushed = values["train/learning_rate"] > 0 and values.get("optim/grad_norm", 1.0) > 0
                values |= session.prove(pushed=pushed)
            session.log(step, values)
            self._tell(_line(step, self._last, values))
            if due:
                session.checkpoint(step, values.get("eval/loss"))
            if ended is not None:
                return session.finished(ended)
        return session.finished("all steps made")

    def _step(self, step: int, due: bool) -> dict[str, float]:
        began_s = time.monotonic()
        settings, trainee = self._settings, self._session.trainee
        batch = chosen(self._lessons.train, step, settings.batch_size, self._session.run.wish.seed)
        tokens = sum(lesson.learned_tokens for lesson in batch)
        passed = trainee.forward_backward(datums(batch), _LOSS)
        rate = settings.schedule.at(step)
        values = {
            "train/loss": passed.loss,
            "train/learning_rate": rate,
            "data/trained_tokens": float(tokens),
        }
        check_finite(values)
        told = trainee.optim_step(rate, settings.beta1, settings.beta2, settings.clip_norm)
        values |= {f"optim/{name.partition(':')[0]}": value for name, value in told.items()}
        check_gradient(passed.loss, values.get("optim/grad_norm"))
        if self._lessons.held_out and (step % settings.eval_every == 0 or due):
            values["eval/loss"] = self._held_out_loss()
        values["time/step_s"] = time.monotonic() - began_s
        return values

    def _held_out_loss(self) -> float:
        found = self._session.trainee.evaluate(datums(self._lessons.held_out)).loss
        best = self._session.state.best_loss
        if best is None or found < best:
            self._session.note(best_loss=found, waited=0)
        else:
            self._session.note(waited=self._session.state.waited + 1)
        return found

    def _ended(self, step: int) -> str | None:
        """Why this is the last step, although there are more."""
        patience = self._settings.patience
        if patience is not None and self._session.state.waited >= patience:
            return "held-out loss stopped falling"
        return "stopped" if self._stop.is_set() and step < self._last else None


def chosen(lessons: Sequence[SftExample], step: int, batch_size: int, seed: int) -> list[SftExample]:
    """The lessons of a step, counted from 1: every epoch has each once, in an order of its own."""
    per_epoch = -(-len(lessons) // batch_size)
    epoch, position = divmod(step - 1, per_epoch)
    order = list(range(len(lessons)))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return [lessons[index] for index in order[position * batch_size : (position + 1) * batch_size]]


def datums(lessons: Sequence[SftExample]) -> list[tinker.Datum]:
    """Weighted so that the sum of the losses is the mean over the learned tokens of all."""
    each = 1.0 / max(1, sum(lesson.learned_tokens for lesson in lessons))
    return [
        weighted(lesson.tokens, [each if learned else 0.0 for learned in lesson.learned])
        for lesson in lessons
    ]


def _identity(run: TrainingRunSpec, lessons: Sequence[SftExample], settings: SftSettings) -> JSONObject:
    digest = hashlib.blake2b(digest_size=8)
    for lesson in lessons:
        digest.update(repr((lesson.tokens, lesson.learned)).encode())
    return {
        "base_model": run.wish.base_model,
        "rank": run.wish.rank,
        "seed": run.wish.seed,
        "start": run.wish.start,
        "data": digest.hexdigest(),
        "batch_size": settings.batch_size,
    }


def _line(step: int, last: int, values: dict[str, float]) -> str:
    told = f"step {step}/{last}  loss {values['train/loss']:.4f}"
    if "eval/loss" in values:
        told += f"  held-out {values['eval/loss']:.4f}"
    return f"{told}  {values['time/step_s']:.2f} s"
