"""A policy of a few thousand numbers that samples, scores and learns in a millisecond, for the real loop.

A linear recurrent model over 64 tokens with a trained matrix, behind the methods of `AdapterClient`.
Trainer, prompt scores and sampling may round differently, as engines do. A test may replace any of its
methods: that is how it is sabotaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hermes.training.checkpoints import TrainingState
from hermes.training.data.api import LeasedBatch
from hermes.training.monitor.sinks import Sinks
from hermes.training.rl import RlLoop, RlTrainerConfig, RunServices
from hermes.training.schedule import Schedule
from hermes.training.service.client import ForwardOutput, LoraSpec, TokenScores, connection
from hermes.training.session import TrainingRunSpec, TrainingSession

VOCABULARY, WIDTH = 64, 24
BASE = "base"
BOS = 1
Array = NDArray[np.float64]


def normalised(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    rows: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return rows


class SmallPolicy:
    """The service: trainer and sampler of one adapter."""

    def __init__(self, seed: int = 0, rounding: float = 1e-6, confidence: float = 1.0) -> None:
        """`rounding`: noise of the logits, different for training, scoring and sampling."""
        chance = np.random.default_rng(seed)
        self._embed = chance.normal(0, 1, (VOCABULARY, WIDTH))
        self._embed[BOS] *= 4  # a token that all later ones attend to
        self._out = chance.normal(0, 0.25 * confidence, (WIDTH, VOCABULARY))
        self._rounding = rounding
        self.weights: Array = np.zeros((WIDTH, VOCABULARY))
        self.published: dict[str, Array] = {BASE: self.weights}
        self._gradient: Array = np.zeros_like(self.weights)

    def states(self, tokens: Sequence[int]) -> Array:
        ages = np.subtract.outer(np.arange(len(tokens)), np.arange(len(tokens)))
        rows: Array = 0.3 * np.where(ages >= 0, 0.95 ** np.maximum(ages, 0), 0) @ self._embed[list(tokens)]
        return rows

    def logits(self, weights: Array, tokens: Sequence[int], kind: int) -> Array:
        """Of the token after each of `tokens`."""
        return self._rounded(self.states(tokens) @ (self._out + weights), weights, tokens, kind)

    def _rounded(self, logits: Array, weights: Array, tokens: Sequence[int], kind: int) -> Array:
        """The same weights and tokens are rounded alike every time."""
        content = np.array([*tokens, kind]).tobytes() + weights[0].tobytes()
        return logits + self._rounding * np.random.default_rng(crc32(content)).normal(0, 1, logits.shape)

    def logprobs(self, weights: Array, tokens: Sequence[int], kind: int) -> Array:
        return normalised(self.logits(weights, tokens[:-1], kind))

    def _scored(self, weights: Array, tokens: Sequence[int], kind: int) -> list[float]:
        rows = self.logprobs(weights, tokens, kind)
        return [0.0, *rows[np.arange(len(tokens) - 1), list(tokens[1:])].tolist()]

    def sample(
        self, path: str, prompt: Sequence[int], count: int, temperature: float, chance: np.random.Generator
    ) -> tuple[list[int], list[float]]:
        """Tokens and the logprobs of the distribution that they were drawn from."""
        weights, tokens, stated = self.published[path], list(prompt), []
        state = self.states(prompt)[-1]
        for _ in range(count):
            row = self._rounded(state @ (self._out + weights), weights, tokens[-8:], kind=3)
            logprobs = normalised(row / temperature)
            token = int(np.searchsorted(np.exp(logprobs).cumsum(), chance.random()).clip(max=VOCABULARY - 1))
            tokens.append(token)
            stated.append(float(logprobs[token]))
            state = 0.95 * state + 0.3 * self._embed[token]
        return tokens[len(prompt) :], stated

    # The methods of AdapterClient

    def forward(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [self._scored(self.weights, tokens, kind=1) for tokens in sequences]

    def forward_backward(self, data: Sequence[Any], loss: Any) -> ForwardOutput:
        rows, total = [], 0.0
        for datum in data:
            inputs = datum.loss_fn_inputs
            targets = np.array(inputs["target_tokens"].data)
            advantages = np.array(inputs["advantages"].data)
            context = datum.model_input.to_ints()
            logprobs = self.logprobs(self.weights, [*context, int(targets[-1])], kind=1)
            chosen = logprobs[np.arange(len(targets)), targets]
            ratio = np.minimum(np.exp(np.clip(chosen - np.array(inputs["logprobs"].data), -50, 50)), 2.0)
            total -= float((ratio * advantages).sum())
            slope = -np.exp(logprobs)
            slope[np.arange(len(targets)), targets] += 1
            self._gradient += self.states(context).T @ ((ratio * advantages)[:, None] * slope)
            rows.append([0.0, *chosen.tolist()])
        return ForwardOutput(rows, {"loss:sum": total})

    def optim_step(self, rate: float, *rest: float) -> dict[str, float]:
        norm = float(np.linalg.norm(self._gradient))
        if norm:
            self.weights = self.weights + rate * self._gradient / norm
        self._gradient = np.zeros_like(self.weights)
        return {"grad_norm:mean": norm}

    def publish(self, name: str) -> str:
        path = f"tinker://small/sampler_weights/{name}"
        self.published[path] = self.weights
        return path

    def save(self, name: str) -> str:
        return f"tinker://small/weights/{name}"

    def score(
        self, weights: str, sequences: Sequence[Sequence[int]], tails: Sequence[int] | None = None
    ) -> list[list[float]]:
        rows = [self._scored(self.published[weights], tokens, kind=2) for tokens in sequences]
        ends = tails or list(map(len, rows))
        return [[0.0] * (len(row) - end) + row[len(row) - end :] for row, end in zip(rows, ends, strict=True)]

    def score_top(self, weights: str, sequences: Sequence[Sequence[int]], most: int) -> list[TokenScores]:
        answers = []
        for tokens in sequences:
            rows = -np.sort(-self.logprobs(self.published[weights], tokens, kind=2), axis=-1)
            top = [[], *rows[:, :most].tolist()]
            answers.append(TokenScores(self._scored(self.published[weights], tokens, kind=2), top))
        return answers

    def begin_forward(self, sequences: Sequence[Sequence[int]]) -> Callable[[], list[list[float]]]:
        rows = self.forward(sequences)
        return lambda: rows

    def begin_publish(self, name: str) -> Callable[[], str]:
        path = self.publish(name)
        return lambda: path

    def begin_score(
        self, weights: str, sequences: Sequence[Sequence[int]], tails: Sequence[int] | None = None
    ) -> Callable[[], list[list[float]]]:
        rows = self.score(weights, sequences, tails)
        return lambda: rows

    def delete(self, path: str) -> None:
        self.published.pop(path, None)

    def rounds_nothing(self) -> bool:
        return self._rounding < 1e-3

    def release_samplers(self) -> None:
        """Nothing is held."""


class SmallRun:
    """The real loop over a small policy: one step after the other, each from rollouts of a known age."""

    def __init__(
        self,
        folder: Path,
        policy: SmallPolicy,
        temperature: float = 1.0,
        age: int = 0,
        rate: float = 0.15,
        tokens: int = 12,
        groups: int = 2,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.policy, self.temperature, self.age = policy, temperature, age
        self.tokens, self.groups = tokens, groups
        run = TrainingRunSpec(
            "small", folder, connection("http://127.0.0.1:9", {}), LoraSpec(BASE, seed=seed)
        )
        client: Any = policy
        config = RlTrainerConfig(schedule=Schedule(rate), num_steps=1000, **settings)
        self.session = TrainingSession(
            run,
            TrainingState("rl", {}),
            client,
            Sinks([]),
            higher_is_better=True,
            proof_ends_run=config.proof_ends_run,
        )
        api: Any = None
        self._loop = RlLoop(self.session, api, config, RunServices(Sinks([]), lambda line: None))
        self._chance = np.random.default_rng(seed)
        self.paths: list[str] = []
        """Of the weights after each step."""
        self.faults = 0
        """How often something was made wrong so far; whatever sabotages the run adds to it."""
        self.session.publish(0)
        self.paths.append(self.session.sampler)
        self.step = 0

    @property
    def sampling_path(self) -> str:
        """The weights that the environment samples for the next step."""
        return self.paths[max(0, len(self.paths) - 1 - self.age)]

    def rollouts(self, path: str | None = None, temperature: float | None = None) -> dict[str, Any]:
        """One group of four, as an environment posts it."""
        sampled, warmth = path or self.sampling_path, temperature or self.temperature
        prompt = [BOS, *self._chance.integers(2, VOCABULARY, 7).tolist()]
        answers = [self.policy.sample(sampled, prompt, self.tokens, warmth, self._chance) for _ in range(4)]
        return {
            "tokens": [[*prompt, *tokens] for tokens, _ in answers],
            "masks": [[*[-100] * len(prompt), *tokens] for tokens, _ in answers],
            "inference_logprobs": [[*[1.0] * len(prompt), *stated] for _, stated in answers],
            "scores": [sum(token % 2 == 0 for token in tokens) / len(tokens) for tokens, _ in answers],
            "overrides": [{"policy_version": self.sampling_path} for _ in answers],
            "generation_params": {"temperature": self.temperature},
        }

    def train(self, groups: list[dict[str, Any]]) -> dict[str, float]:
        self.step += 1
        metrics = self._loop.make_step(self.step, LeasedBatch(self.step, groups))
        self.paths.append(self.session.sampler)
        return metrics

    def healthy_step(self) -> dict[str, float]:
        return self.train([self.rollouts() for _ in range(self.groups)])
