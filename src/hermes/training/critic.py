"""A critic: an adapter of its own that predicts, before each token of an answer, the reward it will get.

Its read-out is that of the reward model, a difference of two logits: the value of a state is
σ(log p("good") − log p("bad")) of the next token. So any service with Tinker's API computes and trains it,
without a head of its own. Two forward passes give the values of all tokens, because the targets of a datum
need not be the tokens that follow.

An advantage is the generalised advantage estimate of the answer's reward, which comes at its end, with a
discount of 1. The critic learns the rewards of each batch after it has been a baseline for it. Rewards lie
between 0 and 1. A group whose answers all have the same reward has a signal too, unlike with a group's mean.

What it does not do: it shares nothing with the policy, and sees no other tokens than the policy saw.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import parse_object
from hermes.core.json import JSONObject
from hermes.core.sequence import MASKED
from hermes.disk.files import atomic_write, read_text
from hermes.errors import HermesError
from hermes.training.data.advantages import generalised_advantages
from hermes.training.data.datums import LossSpec, target_datum
from hermes.training.preference.losses import log_sigmoid, sigmoid
from hermes.training.preference.readout import ReadOutTokens
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import TrainingRunSpec, check_finite

if TYPE_CHECKING:
    import tinker

_CROSS_ENTROPY = LossSpec("cross_entropy", {})
_FILE = "critic.json"
_BETA1, _BETA2, _CLIP_NORM = 0.9, 0.95, 1.0


@dataclass(frozen=True, slots=True)
class CriticConfig:
    words: ReadOutTokens
    """The two tokens of the read-out."""
    gae_lambda: float = 0.95
    """1: the reward less the value; 0: the change of the value from token to token."""
    learning_rate: float | None = None
    """None: that of the policy."""
    max_tokens: int = 1 << 20
    """Longest sequence that has values; longer ones are not trained on either."""


@dataclass(frozen=True, slots=True)
class ValuedSequence:
    """A sequence of a batch with the values that the critic gave before it learned from the batch."""

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    """The positions of the trained tokens."""
    reward: float
    scores: tuple[float, ...]
    """log p("good") − log p("bad") before each trained token."""

    @property
    def values(self) -> list[float]:
        return [sigmoid(score) for score in self.scores]


@contextmanager
def open_critic(
    run: TrainingRunSpec, config: CriticConfig | None, meter: TokenMeter, step: int
) -> Iterator[Critic | None]:
    """The critic of the run as it was at the checkpoint of `step`; None if the run has none."""
    if config is None:
        yield None
        return
    lora = replace(run.lora, start=None, policy=None)
    with AdapterClient(run.connection, lora, meter, _saved_weights(run.folder, step)) as client:
        yield Critic(client, config, run.folder)


class Critic:
    def __init__(self, client: AdapterClient, config: CriticConfig, folder: Path) -> None:
        """`folder`: of the run, which records where the weights of the critic's checkpoints are."""
        self._client = client
        self._config = config
        self._folder = folder
        self._batch: list[ValuedSequence] = []

    def add_advantages(self, served: Sequence[JSONObject]) -> list[JSONObject]:
        """The groups with an advantage for each token, in the format in which environments send them."""
        entries = [
            entry for group in served for entry in _trainable_sequences(group, self._config.max_tokens)
        ]
        self._batch = self._evaluate(entries)
        valued = iter(self._batch)
        return [self._with_advantages(group, valued) for group in served]

    def update(self, rate: float) -> dict[str, float]:
        """Learns the rewards of the batch whose advantages were computed last; the metrics."""
        batch, self._batch = self._batch, []
        if not batch:
            return {}
        count = sum(len(sequence.positions) for sequence in batch)
        data: list[tinker.Datum] = []
        for sequence in batch:
            gradients = [(value - sequence.reward) / count for value in sequence.values]
            data += _readout_datums(sequence.tokens, sequence.positions, self._config.words, gradients)
        self._client.forward_backward(data, _CROSS_ENTROPY)
        metrics = critic_metrics(batch)
        check_finite(metrics)
        optimizer = self._client.optim_step(self._config.learning_rate or rate, _BETA1, _BETA2, _CLIP_NORM)
        norms = {name.partition(":")[0]: value for name, value in optimizer.items()}
        if "grad_norm" in norms:
            metrics["critic/grad_norm"] = norms["grad_norm"]
        return metrics

    def save(self, step: int) -> None:
        """Before the policy's checkpoint of that step is recorded: a resumed run needs both."""
        records = _records(self._folder)
        former = records.get(step)
        records[step] = self._client.save(f"critic-step-{step}")
        _write_records(self._folder, records)
        if former is not None and former != records[step]:  # of a process that was killed before the policy's
            self._client.delete(former)

    def drop_older(self, step: int) -> None:
        """After the policy's checkpoint of that step: nothing resumes from an earlier one any more."""
        records = _records(self._folder)
        older = [saved_step for saved_step in records if saved_step < step]
        for saved_step in older:
            self._client.delete(records.pop(saved_step))
        if older:
            _write_records(self._folder, records)

    def _evaluate(self, entries: Sequence[_TrainableSequence]) -> list[ValuedSequence]:
        if not entries:
            return []
        data = [
            datum
            for entry in entries
            for datum in _readout_datums(entry.tokens, entry.positions, self._config.words, None)
        ]
        rows = self._client.evaluate(data).logprobs
        return [
            ValuedSequence(
                entry.tokens,
                entry.positions,
                entry.reward,
                tuple(good[position] - bad[position] for position in entry.positions),
            )
            for entry, good, bad in zip(entries, rows[::2], rows[1::2], strict=True)
        ]

    def _with_advantages(self, group: JSONObject, valued: Iterator[ValuedSequence]) -> JSONObject:
        valued_indices = {entry.index for entry in _trainable_sequences(group, self._config.max_tokens)}
        rows: list[list[float] | None] = []
        for index, tokens in enumerate(group["tokens"]):
            if index not in valued_indices:
                rows.append(None)
                continue
            sequence = next(valued)
            estimates = generalised_advantages(sequence.values, sequence.reward, self._config.gae_lambda)
            row = [0.0] * len(tokens)
            for position, estimate in zip(sequence.positions, estimates, strict=True):
                row[position] = estimate
            rows.append(row)
        return {**group, "advantages": rows}


def critic_metrics(batch: Sequence[ValuedSequence]) -> dict[str, float]:
    """The values before the update: loss, mean, and how much of the rewards' variance they explain."""
    pairs = [(score, sequence.reward) for sequence in batch for score in sequence.scores]
    losses = [-(reward * log_sigmoid(score) + (1 - reward) * log_sigmoid(-score)) for score, reward in pairs]
    rewards = [reward for _, reward in pairs]
    values = [sigmoid(score) for score, _ in pairs]
    variance = statistics.pvariance(rewards)
    errors = [reward - value for reward, value in zip(rewards, values, strict=True)]
    metrics = {"critic/loss": statistics.fmean(losses), "critic/value": statistics.fmean(values)}
    if variance > 0:
        metrics["critic/explained_variance"] = 1 - statistics.pvariance(errors) / variance
    return metrics


@dataclass(frozen=True, slots=True)
class _TrainableSequence:
    index: int
    """In its group."""
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    reward: float


def _trainable_sequences(group: JSONObject, max_tokens: int) -> list[_TrainableSequence]:
    """Those that a batch can train on; `from_group` says why others are not."""
    entries = []
    for index, (tokens, masks) in enumerate(zip(group["tokens"], group.get("masks") or (), strict=False)):
        if len(tokens) > max_tokens or len(tokens) != len(masks) or index >= len(group["scores"]):
            continue
        positions = tuple(position for position in range(1, len(tokens)) if masks[position] != MASKED)
        if positions:
            reward = float(group["scores"][index])
            _check_reward(reward)
            entries.append(_TrainableSequence(index, tuple(tokens), positions, reward))
    return entries


def _check_reward(reward: float) -> None:
    if not 0 <= reward <= 1:
        raise HermesError(
            f"a rollout has the reward {reward:.3g}, and a critic's values lie between 0 and 1",
            "--advantage mean, or rewards from 0 to 1 (a reward model's are)",
        )


def _readout_datums(
    tokens: Sequence[int],
    positions: Sequence[int],
    words: ReadOutTokens,
    gradients: Sequence[float] | None,
) -> list[tinker.Datum]:
    """One datum for each word, whose cross-entropy has these gradients by log p(good) − log p(bad)."""
    weights = [0.0] * len(tokens)
    for position, gradient in zip(positions, gradients or (), strict=gradients is not None):
        weights[position] = -gradient
    return [
        target_datum(tokens, words.good, weights),
        target_datum(tokens, words.bad, [-weight for weight in weights]),
    ]


def _records(folder: Path) -> dict[int, str]:
    """Step → weights of the critic."""
    path = folder / _FILE
    try:
        return {int(step): str(weights) for step, weights in parse_object(read_text(path) or "{}").items()}
    except ValueError as error:
        raise HermesError(f"{path} is damaged: {error}", "use another --name") from error


def _write_records(folder: Path, records: dict[int, str]) -> None:
    atomic_write(folder / _FILE, json.dumps(records, indent=1) + "\n")


def _saved_weights(folder: Path, step: int) -> str | None:
    if not step:
        return None
    weights = _records(folder).get(step)
    if weights is None:
        raise HermesError(
            f"{folder / _FILE} has no critic of step {step}, from which the run resumes", "use another --name"
        )
    return weights
