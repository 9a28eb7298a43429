"""Supervised fine-tuning over the Tinker API, with early stopping on held-out loss.

The loss is the mean over the trained tokens of a batch. The loop is that of every training on stored rows
(`offline`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.training.data.datums import LossSpec, sft_datum
from hermes.training.data.sft_examples import SftExample, SftExamples
from hermes.training.offline import (
    EVAL_LOSS,
    LOSS,
    OfflineObjective,
    OfflineSettings,
    rows_of_step,
    steps_of,
    train_offline,
)
from hermes.training.service.client import AdapterClient
from hermes.training.session import ProgressCallback, TrainingRunSpec, TrainResult

if TYPE_CHECKING:
    import tinker

    from hermes.training.monitor.sinks import Sinks

__all__ = ["SftSettings", "examples_of_step", "sft_datums", "steps_of", "train"]

KIND = "sft"
_LOSS = LossSpec("cross_entropy", {})
SftSettings = OfflineSettings
examples_of_step = rows_of_step
REPLAY_LOSS = "replay/loss"


def train(
    run: TrainingRunSpec,
    examples: SftExamples,
    settings: SftSettings,
    sinks: Sinks,
    progress: ProgressCallback,
    stop: threading.Event | None = None,
) -> TrainResult:
    """Trains to the end, from the last checkpoint. `stop`, once set: finish the step, save, and end."""
    return train_offline(
        run, SftObjective(examples.train, examples.held_out), settings, sinks, progress, stop
    )


class SftObjective(OfflineObjective[SftExample]):
    """Cross-entropy on the turns of the model."""

    kind = KIND

    @property
    def probe(self) -> Sequence[int]:
        return self.train[0].tokens

    @property
    def identity(self) -> Mapping[str, object]:
        return {"data": digest_of_examples(self.train)}

    def accumulate(self, client: AdapterClient, step: int, seed: int, batch_size: int) -> dict[str, float]:
        batch = examples_of_step(self.train, step, batch_size, seed)
        output = client.forward_backward(sft_datums(batch), _LOSS)
        tokens = sum(example.trained_tokens for example in batch)
        return {LOSS: output.loss, "data/trained_tokens": float(tokens)}

    def evaluate(self, client: AdapterClient) -> dict[str, float]:
        return {EVAL_LOSS: client.evaluate(sft_datums(self.held_out)).loss}


def digest_of_examples(examples: Sequence[SftExample]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for example in examples:
        digest.update(repr((example.tokens, example.loss_mask)).encode())
    return digest.hexdigest()


def sft_datums(examples: Sequence[SftExample], scale: float = 1.0) -> list[tinker.Datum]:
    """Weighted so that the sum of the losses is the mean over all trained tokens, times `scale`."""
    weight = scale / max(1, sum(example.trained_tokens for example in examples))
    return [
        sft_datum(example.tokens, [weight if in_loss else 0.0 for in_loss in example.loss_mask])
        for example in examples
    ]


@dataclass(frozen=True)
class ReplayRows:
    examples: Sequence[SftExample]
    """Sequences of the earlier skill, with the turns that are trained on."""
    weight: float = 1.0
    """The weight of their mean cross-entropy, beside the loss of the objective."""


class ReplayObjective(OfflineObjective[Any]):
    """Another objective, with replayed rows in each of its steps."""

    def __init__(self, objective: OfflineObjective[Any], rows: ReplayRows) -> None:
        super().__init__(objective.train, objective.held_out)
        self.kind = objective.kind
        self._objective = objective
        self._rows = rows

    @property
    def probe(self) -> Sequence[int]:
        return self._objective.probe

    @property
    def identity(self) -> Mapping[str, object]:
        replay = {"data": digest_of_examples(self._rows.examples), "weight": self._rows.weight}
        return {**self._objective.identity, "replay": replay}

    def prepare(self, run: TrainingRunSpec, client: AdapterClient) -> None:
        self._objective.prepare(run, client)

    def close(self) -> None:
        self._objective.close()

    def accumulate(self, client: AdapterClient, step: int, seed: int, batch_size: int) -> dict[str, float]:
        metrics = self._objective.accumulate(client, step, seed, batch_size)
        examples = rows_of_step(self._rows.examples, step, batch_size, seed)
        output = client.forward_backward(sft_datums(examples, self._rows.weight), _LOSS)
        return {**metrics, REPLAY_LOSS: output.loss / self._rows.weight}

    def evaluate(self, client: AdapterClient) -> dict[str, float]:
        return self._objective.evaluate(client)

    def describe(self, metrics: Mapping[str, float]) -> str:
        return f"{self._objective.describe(metrics)}  replay {metrics[REPLAY_LOSS]:.4f}"
