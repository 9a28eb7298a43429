"""Replay: rows of an earlier skill that are trained beside another objective, so that it is not unlearned.

Ratings say what people like about the answers they saw, and nothing about what the policy could do before.
Each step adds the cross-entropy of as many replayed rows as the step has rows of its own, times a weight.
Replay lowers forgetting; it does not measure it: evaluate the earlier skill (`hermes env evaluate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.training.data.correction import LossSpec
from hermes.training.data.sft_examples import SftExample
from hermes.training.offline import OfflineObjective, rows_of_step
from hermes.training.service.client import AdapterClient
from hermes.training.session import TrainingRunSpec
from hermes.training.sft import digest_of_examples, sft_datums

_LOSS = LossSpec("cross_entropy", {})
REPLAY_LOSS = "replay/loss"


@dataclass(frozen=True)
class ReplayRows:
    examples: Sequence[SftExample]
    """Sequences of the earlier skill, with the turns that are trained on."""
    weight: float = 1.0
    """Of their mean cross-entropy, beside the loss of the objective."""


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
