"""One update from prepared sequences: the passes over the data, the optimizer, and the numbers of both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from hermes.training.data.batch import ScoredSequence
from hermes.training.data.correction import (
    IMPORTANCE_SAMPLING,
    PPO,
    bounds_of,
    engine_loss,
    surrogate,
    weights,
)
from hermes.training.data.datums import rewarded
from hermes.training.data.metrics import TokenStats, clip_fraction, token_metrics
from hermes.training.monitor.proof import Proof
from hermes.training.service.client import AdapterClient, ForwardOutput
from hermes.training.session import check_finite

if TYPE_CHECKING:
    import tinker


class UpdateConfig(Protocol):
    @property
    def loss(self) -> str: ...
    @property
    def cap(self) -> float | None: ...
    @property
    def clip(self) -> tuple[float, float] | None: ...
    @property
    def epochs(self) -> int: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def clip_norm(self) -> float: ...


class Update:
    def __init__(self, trainee: AdapterClient, settings: UpdateConfig) -> None:
        self._trainee = trainee
        self._settings = settings
        self._loss = engine_loss(settings.loss, settings.cap, settings.clip)

    def make(
        self, items: Sequence[ScoredSequence], step: int, rate: float, proof: Proof | None
    ) -> dict[str, float]:
        """`step`: the one that this update makes. The sum of the losses is the mean over trained tokens."""
        settings = self._settings
        each = 1.0 / sum(item.rollout.trained_tokens for item in items)
        data, behaviour, scaled = self._data(items, step - 1, each)
        values: dict[str, float] = {}
        clipped: list[float] = []
        bounds, sent = bounds_of(self._loss), _of_trained(items, behaviour)
        for epoch in range(settings.epochs):
            passed = self._trainee.forward_backward(data, self._loss)
            if bounds is not None:
                clipped.append(clip_fraction(_of_trained(items, passed.logprobs), sent, bounds))
            if epoch == 0:
                values = self._numbers(items, passed, behaviour, scaled)
                if proof is not None:
                    _judge(proof, items, passed.logprobs, step - 1)
            check_finite({"train/loss": passed.loss})
            told = self._trainee.optim_step(rate, settings.beta1, settings.beta2, settings.clip_norm)
            optim = {f"optim/{name.partition(':')[0]}": value for name, value in told.items()}
            check_finite(optim)
            values |= optim
        return values | ({"health/clip_fraction": statistics.fmean(clipped)} if clipped else {})

    def _data(
        self, items: Sequence[ScoredSequence], step: int, each: float
    ) -> tuple[list[tinker.Datum], list[list[float]], list[list[float]]]:
        """Datums, the logprobs that ratios are taken to, and the advantages as sent."""
        behaviour = [list(item.rollout.logprobs) for item in items]
        scaled = [[each * value for value in item.advantages] for item in items]
        if any(self._replaced(item, step) for item in items):
            present = self._trainee.forward([item.rollout.tokens for item in items])
            for index, item in enumerate(items):
                if self._replaced(item, step):
                    scaled[index] = self._weighed(item, scaled[index], present[index])
                    behaviour[index] = present[index]
        masked = [
            [one if trained else 0.0 for one, trained in zip(values, item.rollout.trained, strict=True)]
            for item, values in zip(items, behaviour, strict=True)
        ]
        data = [
            rewarded(item.rollout.tokens, old, values)
            for item, old, values in zip(items, masked, scaled, strict=True)
        ]
        return data, masked, scaled

    def _replaced(self, item: ScoredSequence, step: int) -> bool:
        """Whether the trainer's own logprobs take the place of the sampler's."""
        if item.rollout.temperature != 1.0:
            return True
        return self._settings.loss == PPO and self._settings.cap is not None and item.stale_by(step) != 0

    def _weighed(self, item: ScoredSequence, advantages: list[float], present: list[float]) -> list[float]:
        cap = self._settings.cap
        if item.rollout.temperature != 1.0 or cap is None:
            return advantages
        ratios = weights(present, item.rollout.logprobs, cap)
        return [value * ratio for value, ratio in zip(advantages, ratios, strict=True)]

    def _numbers(
        self,
        items: Sequence[ScoredSequence],
        passed: ForwardOutput,
        behaviour: list[list[float]],
        scaled: list[list[float]],
    ) -> dict[str, float]:
        settings = self._settings
        stated = [item.rollout.logprobs for item in items]
        comparable = [
            item.rollout.logprobs if item.rollout.temperature == 1.0 else old
            for item, old in zip(items, behaviour, strict=True)
        ]
        tokens = TokenStats(
            _of_trained(items, stated),
            _of_trained(items, comparable),
            _of_trained(items, passed.logprobs),
            _of_trained(items, [item.advantages for item in items]),
        )
        loss = passed.loss
        if settings.loss == IMPORTANCE_SAMPLING and settings.cap is not None:
            sent = _of_trained(items, behaviour)
            loss = surrogate(tokens.trainer, sent, _of_trained(items, scaled), settings.cap)
        return {"train/loss": loss, **token_metrics(tokens)}


def _of_trained(items: Sequence[ScoredSequence], values: Sequence[Sequence[float]]) -> list[float]:
    """What is known by sequence and token, of the trained tokens."""
    return [
        value
        for item, row in zip(items, values, strict=True)
        for value, trained in zip(row, item.rollout.trained, strict=True)
        if trained
    ]


def _judge(
    proof: Proof, items: Sequence[ScoredSequence], trainer: Sequence[Sequence[float]], step: int
) -> None:
    """Stated against present logprobs: of what these weights sampled, else of what nobody dates."""
    for age in (0, None):
        fresh = [
            (item, logprobs)
            for item, logprobs in zip(items, trainer, strict=True)
            if item.rollout.temperature == 1.0 and item.stale_by(step) == age
        ]
        of = [item for item, _ in fresh]
        stated = _of_trained(of, [item.rollout.logprobs for item in of])
        present = _of_trained(of, [logprobs for _, logprobs in fresh])
        proof.judge_batch(stated, present, certain=age == 0)
