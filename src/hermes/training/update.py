"""One policy update from a batch: the passes over the data, the optimizer step, and the metrics of both."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.core.sequence import TrainSequence
from hermes.training.data.datums import (
    GSPO,
    IMPORTANCE_SAMPLING,
    PPO,
    bounds_of,
    engine_loss,
    importance_weights,
    rl_datum,
    sequence_ratio,
    sequence_weight,
    surrogate,
)
from hermes.training.data.metrics import TokenStats, clip_fraction, token_metrics
from hermes.training.monitor.batch_audit import BatchAudit
from hermes.training.service.client import AdapterClient, ForwardOutput
from hermes.training.session import check_finite, check_policy_gradient

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig:
    """How an update is made."""

    loss: str = IMPORTANCE_SAMPLING
    cap: float | None = 2.0
    """Upper bound of the importance weight of a token; None: no correction."""
    clip: tuple[float, float] | None = None
    """Bounds of the ratio, for ppo and cispo; None: the engine's defaults."""
    epochs: int = 1
    """Updates from one batch."""
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0


class Update:
    def __init__(self, client: AdapterClient, settings: UpdateConfig) -> None:
        self._client = client
        self._settings = settings
        self._loss = engine_loss(settings.loss, settings.cap, settings.clip)

    def apply(
        self,
        sequences: Sequence[TrainSequence],
        step: int,
        rate: float,
        audit: BatchAudit | None,
        present: Sequence[Sequence[float]] | None = None,
        on_updated: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Makes step `step`. The losses are scaled so that their sum is the mean over the trained tokens of
        all `sequences`, also of those whose advantages are 0; for gspo the mean over the sequences.

        `present`: the logprobs by token under the present weights, if they are known. `on_updated` is called
        after the last optimizer step; the metrics are computed and the batch is audited afterwards.
        """
        settings = self._settings
        data, behaviour, scaled = self._data(sequences, step - 1, present)
        outputs: list[ForwardOutput] = []
        optim: dict[str, float] = {}
        for epoch in range(settings.epochs):
            outputs.append(self._client.forward_backward(data, self._loss))
            check_finite({"train/loss": outputs[-1].loss})
            optimizer = self._client.optim_step(rate, settings.beta1, settings.beta2, settings.clip_norm)
            optim = {f"optim/{name.partition(':')[0]}": value for name, value in optimizer.items()}
            check_finite(optim)
            if epoch == 0:
                check_policy_gradient(_trained_only(sequences, scaled), optim.get("optim/grad_norm"))
        on_updated()
        metrics = self._metrics(sequences, outputs[0], behaviour, scaled) | optim
        if audit is not None:
            metrics |= audit.check(sequences, outputs[0].logprobs, step - 1)
        if (bounds := bounds_of(self._loss)) is not None:
            metrics["health/clip_fraction"] = statistics.fmean(
                self._clip_fraction(sequences, output, behaviour, bounds) for output in outputs
            )
        return metrics

    def _data(
        self,
        sequences: Sequence[TrainSequence],
        step: int,
        present: Sequence[Sequence[float]] | None,
    ) -> tuple[list[tinker.Datum], list[list[float]], list[list[float]]]:
        """The datums, the logprobs that ratios are relative to, and the advantages as sent."""
        behaviour = [list(sequence.logprobs) for sequence in sequences]
        scaled = [
            [scale * advantage for advantage in sequence.advantages]
            for sequence, scale in zip(sequences, self._scales(sequences), strict=True)
        ]
        if any(self._uses_trainer_logprobs(sequence, step) for sequence in sequences):
            if present is None:
                present = self._client.forward([sequence.tokens for sequence in sequences])
            for index, sequence in enumerate(sequences):
                if self._uses_trainer_logprobs(sequence, step):
                    scaled[index] = self._apply_importance_weights(sequence, scaled[index], present[index])
                    behaviour[index] = list(present[index])
        masked = [
            [value if in_loss else 0.0 for value, in_loss in zip(values, sequence.loss_mask, strict=True)]
            for sequence, values in zip(sequences, behaviour, strict=True)
        ]
        data = [
            rl_datum(
                sequence.tokens,
                logprobs,
                advantages,
                sequence.loss_mask if self._settings.loss == GSPO else None,
            )
            for sequence, logprobs, advantages in zip(sequences, masked, scaled, strict=True)
        ]
        return data, masked, scaled

    def _scales(self, sequences: Sequence[TrainSequence]) -> list[float]:
        """By sequence the factor of its tokens' losses, so that their sum is a mean."""
        if self._settings.loss == GSPO:
            return [1.0 / (len(sequences) * sequence.trained_tokens) for sequence in sequences]
        return [1.0 / sum(sequence.trained_tokens for sequence in sequences)] * len(sequences)

    def _clip_fraction(
        self,
        sequences: Sequence[TrainSequence],
        output: ForwardOutput,
        behaviour: Sequence[Sequence[float]],
        bounds: tuple[float, float],
    ) -> float:
        """The share of ratios beyond the bounds: of tokens, for gspo of sequences."""
        if self._settings.loss != GSPO:
            trained = _trained_only(sequences, output.logprobs)
            return clip_fraction(trained, _trained_only(sequences, behaviour), bounds)
        ratios = [
            sequence_ratio(sequence.trained_only(new), sequence.trained_only(old))
            for sequence, new, old in zip(sequences, output.logprobs, behaviour, strict=True)
        ]
        return sum(not bounds[0] <= ratio <= bounds[1] for ratio in ratios) / len(ratios)

    def _uses_trainer_logprobs(self, sequence: TrainSequence, step: int) -> bool:
        """Whether the trainer's logprobs replace the sampler's in the ratio."""
        if sequence.temperature != 1.0 or self._settings.loss == GSPO:
            return True
        return self._settings.loss == PPO and self._settings.cap is not None and sequence.staleness(step) != 0

    def _apply_importance_weights(
        self, sequence: TrainSequence, advantages: list[float], present: Sequence[float]
    ) -> list[float]:
        """The advantages times the capped importance weights."""
        cap = self._settings.cap
        if sequence.temperature != 1.0 or cap is None:
            return advantages
        if self._settings.loss == GSPO:
            weight = sequence_weight(
                sequence.trained_only(present), sequence.trained_only(sequence.logprobs), cap
            )
            return [advantage * weight for advantage in advantages]
        ratios = importance_weights(present, sequence.logprobs, cap)
        return [advantage * ratio for advantage, ratio in zip(advantages, ratios, strict=True)]

    def _metrics(
        self,
        sequences: Sequence[TrainSequence],
        output: ForwardOutput,
        behaviour: list[list[float]],
        scaled: list[list[float]],
    ) -> dict[str, float]:
        settings = self._settings
        comparable = [
            sequence.logprobs if sequence.temperature == 1.0 else logprobs
            for sequence, logprobs in zip(sequences, behaviour, strict=True)
        ]
        tokens = TokenStats(
            _trained_only(sequences, [sequence.logprobs for sequence in sequences]),
            _trained_only(sequences, comparable),
            _trained_only(sequences, output.logprobs),
            _trained_only(sequences, [sequence.advantages for sequence in sequences]),
        )
        loss = output.loss
        if settings.loss == IMPORTANCE_SAMPLING and settings.cap is not None:
            sent_logprobs = _trained_only(sequences, behaviour)
            loss = surrogate(tokens.trainer, sent_logprobs, _trained_only(sequences, scaled), settings.cap)
        return {"train/loss": loss, **token_metrics(tokens)}


def _trained_only(sequences: Sequence[TrainSequence], values: Sequence[Sequence[float]]) -> list[float]:
    """The values of the trained tokens of all sequences; `values` are by sequence and token."""
    return [
        value for sequence, row in zip(sequences, values, strict=True) for value in sequence.trained_only(row)
    ]
