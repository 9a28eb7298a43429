"""Supervised fine-tuning over the Tinker API, with early stopping on held-out loss.

The loss is the mean over the trained tokens of a batch. The examples of a step are a function of seed and
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
from hermes.training.checkpoints import StateFile, exclusive_lock
from hermes.training.data.correction import LossSpec
from hermes.training.data.datums import sft_datum
from hermes.training.data.sft_examples import SftExample, SftExamples
from hermes.training.schedule import Schedule
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import (
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
    import tinker

    from hermes.training.monitor.sinks import Sinks

KIND = "sft"
_LOSS = LossSpec("cross_entropy", {})
_PROVED_STEPS = 3
"""The first steps; after them the proof is made at each checkpoint."""


@dataclass(frozen=True, slots=True)
class SftSettings:
    schedule: Schedule
    epochs: int = 1
    batch_size: int = 16
    """Sequences a step."""
    max_steps: int | None = None
    """None: all steps of the epochs."""
    eval_every: int = 10
    """Steps between two evaluations on the held-out examples."""
    patience: int | None = None
    """Evaluations without a new best loss that end the run; None: no early stopping."""
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0


def steps_of(examples: int, settings: SftSettings) -> int:
    """How many steps the run has."""
    per_epoch = -(-examples // settings.batch_size)
    whole = per_epoch * settings.epochs
    return whole if settings.max_steps is None else min(whole, settings.max_steps)


def train(
    run: TrainingRunSpec,
    examples: SftExamples,
    settings: SftSettings,
    sinks: Sinks,
    progress: ProgressCallback,
    stop: threading.Event | None = None,
) -> TrainResult:
    """Trains to the end, from the last checkpoint. `stop`, once set: finish the step, save, and end."""
    ending = stop or threading.Event()
    with exclusive_lock(run.folder):
        return retry_on_engine_loss(
            run, lambda: _attempt(run, examples, settings, sinks, progress, ending), progress
        )


def _attempt(
    run: TrainingRunSpec,
    examples: SftExamples,
    settings: SftSettings,
    sinks: Sinks,
    progress: ProgressCallback,
    stop: threading.Event,
) -> TrainResult:
    state = StateFile(run.folder).read(KIND, _identity(run, examples.train, settings))
    last = steps_of(len(examples.train), settings)
    if state.finished and state.step >= last:
        return result_of(state, {})
    with (
        closing(TokenMeter(run.folder)) as meter,
        AdapterClient(run.connection, run.lora, meter, state.weights) as client,
    ):
        session = TrainingSession(run, state, client, sinks, higher_is_better=False)
        session.write(finished=None)
        session.publish(state.step)
        session.begin_proof(examples.train[0].tokens)
        return _SftLoop(session, examples, settings, last, progress, stop).run()


class _SftLoop:
    def __init__(
        self,
        session: TrainingSession,
        examples: SftExamples,
        settings: SftSettings,
        last: int,
        progress: ProgressCallback,
        stop: threading.Event,
    ) -> None:
        self._session = session
        self._examples = examples
        self._settings = settings
        self._last = last
        self._progress = progress
        self._stop = stop

    def run(self) -> TrainResult:
        session = self._session
        for step in range(session.state.step + 1, self._last + 1):
            due = session.checkpoint_due(step, self._last)
            metrics = self._step(step, due)
            stop_reason = self._stop_reason(step)
            due = due or stop_reason is not None or ("eval/loss" in metrics and session.state.waited == 0)
            if due or step <= _PROVED_STEPS:
                session.publish(step)
                pushed = metrics["train/learning_rate"] > 0 and metrics.get("optim/grad_norm", 1.0) > 0
                metrics |= session.prove(pushed=pushed)
            session.log(step, metrics)
            self._progress(_progress_line(step, self._last, metrics))
            if due:
                session.checkpoint(step, metrics.get("eval/loss"))
            if stop_reason is not None:
                return session.finish(stop_reason)
        return session.finish("all steps made")

    def _step(self, step: int, due: bool) -> dict[str, float]:
        began_s = time.monotonic()
        settings, client = self._settings, self._session.client
        batch = examples_of_step(self._examples.train, step, settings.batch_size, self._session.run.lora.seed)
        tokens = sum(example.trained_tokens for example in batch)
        output = client.forward_backward(sft_datums(batch), _LOSS)
        rate = settings.schedule.at(step)
        metrics = {
            "train/loss": output.loss,
            "train/learning_rate": rate,
            "data/trained_tokens": float(tokens),
        }
        check_finite(metrics)
        optimizer = client.optim_step(rate, settings.beta1, settings.beta2, settings.clip_norm)
        metrics |= {f"optim/{name.partition(':')[0]}": value for name, value in optimizer.items()}
        check_gradient(output.loss, metrics.get("optim/grad_norm"))
        if self._examples.held_out and (step % settings.eval_every == 0 or due):
            metrics["eval/loss"] = self._held_out_loss()
        metrics["time/step_s"] = time.monotonic() - began_s
        return metrics

    def _held_out_loss(self) -> float:
        loss = self._session.client.evaluate(sft_datums(self._examples.held_out)).loss
        best = self._session.state.best_loss
        if best is None or loss < best:
            self._session.update_state(best_loss=loss, waited=0)
        else:
            self._session.update_state(waited=self._session.state.waited + 1)
        return loss

    def _stop_reason(self, step: int) -> str | None:
        """Why the run ends after this step, although there are more; None: it does not."""
        patience = self._settings.patience
        if patience is not None and self._session.state.waited >= patience:
            return "held-out loss stopped falling"
        return "stopped" if self._stop.is_set() and step < self._last else None


def examples_of_step(
    examples: Sequence[SftExample], step: int, batch_size: int, seed: int
) -> list[SftExample]:
    """The examples of a step, counted from 1: every epoch has each once, in its own order."""
    per_epoch = -(-len(examples) // batch_size)
    epoch, position = divmod(step - 1, per_epoch)
    order = list(range(len(examples)))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return [examples[index] for index in order[position * batch_size : (position + 1) * batch_size]]


def sft_datums(examples: Sequence[SftExample]) -> list[tinker.Datum]:
    """Weighted so that the sum of the losses is the mean over all trained tokens."""
    weight = 1.0 / max(1, sum(example.trained_tokens for example in examples))
    return [
        sft_datum(example.tokens, [weight if in_loss else 0.0 for in_loss in example.loss_mask])
        for example in examples
    ]


def _identity(run: TrainingRunSpec, examples: Sequence[SftExample], settings: SftSettings) -> JSONObject:
    digest = hashlib.blake2b(digest_size=8)
    for example in examples:
        digest.update(repr((example.tokens, example.loss_mask)).encode())
    return {
        "base_model": run.lora.base_model,
        "rank": run.lora.rank,
        "seed": run.lora.seed,
        "start": run.lora.start,
        "data": digest.hexdigest(),
        "batch_size": settings.batch_size,
    }


def _progress_line(step: int, last: int, metrics: dict[str, float]) -> str:
    line = f"step {step}/{last}  loss {metrics['train/loss']:.4f}"
    if "eval/loss" in metrics:
        line += f"  held-out {metrics['eval/loss']:.4f}"
    return f"{line}  {metrics['time/step_s']:.2f} s"
