"""Sabotage: a stale adapter, a no-op optimizer and a wrong mask each end the run within three steps."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from hermes.core.sequence import TrainSequence
from hermes.training.monitor.proof import Proof, ProofError, Reading, begin_proof
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import TrainingRunSpec
from tests.engine.http.engine_process import Server
from tests.training.conftest import MakeRun
from tests.training.proxy import no_update, proxy, stale_sampler
from tests.training.rl_runs import trained
from tests.training.sft_runs import few
from tests.training.world import Environment, metrics


def steps_made(run: TrainingRunSpec) -> int:
    return len(metrics(run.folder)) if (run.folder / "metrics.jsonl").exists() else 0


def test_a_stale_adapter_ends_the_run(make_run: MakeRun, environment: Environment, engine: Server) -> None:
    with proxy(engine.url, stale_sampler()) as url:
        run = make_run(url=url)
        with pytest.raises(ProofError, match=r"^stale adapter: ") as caught:
            trained(run, environment, steps=9)
    assert caught.value.cause == "stale adapter" and steps_made(run) < 3


def test_an_optimizer_that_does_nothing_ends_the_run(
    make_run: MakeRun, environment: Environment, engine: Server
) -> None:
    with proxy(engine.url, no_update) as url:
        run = make_run(url=url)
        with pytest.raises(ProofError, match=r"^no-op optimizer: 2 of 2 updates with gradients"):
            trained(run, environment, steps=9)
    assert steps_made(run) < 3


def test_a_shuffled_mask_ends_the_run(make_run: MakeRun, environment: Environment) -> None:
    def shuffle(made: dict[str, Any]) -> None:
        for index, tokens in enumerate(made["tokens"]):
            stated = made["inference_logprobs"][index]
            made["masks"][index] = [-100, *tokens[1:-2], -100, -100]
            made["inference_logprobs"][index] = [1.0, *stated[3:], 1.0, 1.0]

    run = make_run()
    with pytest.raises(ProofError, match=r"^wrong mask: the logprobs that the environment states differ"):
        trained(run, environment, shuffle, steps=9)
    assert steps_made(run) < 3


def every_second_update() -> Callable[[str, Any], Any]:
    """The optimizer is asked twice, and does its work once."""
    steps = itertools.count()

    def change(path: str, body: Any) -> Any:
        return no_update(path, body) if path.endswith("/optim_step") and next(steps) % 2 == 0 else body

    return change


def shift(made: dict[str, Any]) -> None:
    for row in made["inference_logprobs"]:
        row[-6:] = [*row[-5:], row[-6]]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", ["shifted", "stale rollouts, shifted", "one step behind"])
def test_a_faulty_environment_is_named_by_the_real_engine_too(
    make_run: MakeRun, environment: Environment, temperature: float, kind: str
) -> None:
    environment.temperature = temperature
    first: list[str] = []

    def change(made: dict[str, Any]) -> None:
        first.append(made["overrides"][0]["policy_version"])
        if kind.startswith("stale"):
            made.update(environment.rollouts(first[0]))
        if kind == "one step behind":
            older = [path for path in first if path != first[-1]] or first
            made.update({**environment.rollouts(older[-1]), "overrides": made["overrides"]})
        elif len(set(first)) > 1:
            shift(made)

    run = make_run()
    with pytest.raises(ProofError) as caught:
        trained(run, environment, change, steps=9)
    cause = "stale adapter" if kind == "one step behind" else "wrong mask"
    assert caught.value.cause == cause, caught.value.message
    assert steps_made(run) <= 3


def test_every_second_update_dropped_is_named_by_the_real_engine_too(
    make_run: MakeRun, environment: Environment, engine: Server
) -> None:
    with proxy(engine.url, every_second_update()) as url:
        run = make_run(url=url)
        with pytest.raises(ProofError, match=r"^no-op optimizer: 2 of \d updates"):
            trained(run, environment, steps=9)
    assert steps_made(run) <= 3


def test_what_comes_before_the_sampled_tokens_is_read_from_the_samplers_cache(
    make_run: MakeRun, engine: Server
) -> None:
    """Of what is scored at every step, most is prompts, which nobody trains on."""
    run, tokens, sampled = make_run(), [7, *range(40, 240)], 20
    mask = [False] * (len(tokens) - sampled) + [True] * sampled
    sequence = TrainSequence(tuple(tokens), tuple(mask), (0.0,) * len(tokens))
    with closing(TokenMeter(run.folder)) as meter, AdapterClient(run.connection, run.lora, meter) as client:
        weights = client.publish("step-0")
        whole = client.score(weights, [tokens])[0]
        cached = engine.metric("cached_tokens_total")
        tail = client.score(weights, [tokens], [sequence.trained_tail])[0]
        assert engine.metric("cached_tokens_total") - cached == len(tokens) - sampled - 1
    assert tail[-sampled:] == pytest.approx(whole[-sampled:], abs=1e-4)
    assert not any(tail[:-sampled])


@pytest.mark.parametrize(("mask", "tail"), [("0110", 3), ("1111", 3), ("0001", 1), ("0000", 1)])
def test_the_tail_of_a_sequence_holds_all_that_is_trained_on(mask: str, tail: int) -> None:
    in_loss = tuple(letter == "1" for letter in mask)
    assert TrainSequence((5, 6, 7, 8), in_loss, (0.0,) * 4).trained_tail == tail


def test_the_same_proxy_without_sabotage_lets_the_run_pass(
    make_run: MakeRun, environment: Environment, engine: Server
) -> None:
    with proxy(engine.url, lambda path, body: body) as url:
        assert trained(make_run(url=url), environment, steps=4).step == 4


def test_an_optimizer_that_does_nothing_ends_supervised_training_too(
    make_run: MakeRun, engine: Server, sinks_of: Any
) -> None:
    from hermes.training.schedule import Schedule
    from hermes.training.sft import SftSettings, train

    with proxy(engine.url, no_update) as url:
        run = make_run(url=url)
        with pytest.raises(ProofError, match=r"^no-op optimizer"):
            train(
                run,
                few(),
                SftSettings(Schedule(0.01), epochs=9, batch_size=3),
                sinks_of(run),
                lambda line: None,
            )
    assert steps_made(run) < 3


def judged(*readings: tuple[list[float], list[float]], pushed: bool = True) -> Proof:
    first, *rest = (Reading(*logprobs) for logprobs in readings)
    proof = begin_proof(first, first.trainer)
    for reading in rest:
        proof.judge(reading, pushed=pushed)
    return proof


def test_a_sampler_that_follows_is_no_suspect_however_noisy() -> None:
    judged(([-1.0, -2.0], [-1.01, -1.99]), ([-0.9, -1.9], [-0.91, -1.89]), ([-0.5, -1.5], [-0.51, -1.49]))


def test_one_strike_is_forgiven_and_two_of_four_are_not() -> None:
    start, moved, further = ([-1.0], [-1.0]), ([-0.8], [-1.0]), ([-0.6], [-1.0])
    judged(start, moved, ([-0.7], [-0.7]), ([-0.5], [-0.5]))
    with pytest.raises(ProofError, match="stale"):
        judged(start, moved, further)
    with pytest.raises(ProofError, match="stale"):
        judged(start, moved, ([-0.7], [-0.7]), ([-0.5], [-0.7]))


def test_weights_that_rest_without_gradients_are_no_suspect() -> None:
    judged(([-1.0], [-1.0]), ([-1.0], [-1.0]), ([-1.0], [-1.0]), pushed=False)


class Arithmetic:
    """Readings of a trainer and a sampler whose arithmetic rounds: noise that changes with the weights."""

    def __init__(self, noise: float, movement: float, seed: int, tokens: int = 127) -> None:
        self._chance = random.Random(seed)
        # A few tokens move, and are rounded, far more than the others, and not the same ones.
        self._moves = [movement * math.exp(self._chance.gauss(0, 1)) for _ in range(tokens)]
        self._rounds = [noise * math.exp(self._chance.gauss(0, 1)) for _ in range(tokens)]
        self._drift = [self._chance.gauss(0, move) for move in self._moves]
        self.weights = [[-2.0] * tokens]

    def begin(self) -> Proof:
        """The same weights give the trainer the same logprobs again."""
        first = self.reading()
        return begin_proof(first, first.trainer)

    def train(self) -> None:
        """Half of a step's movement goes on in the direction of the last one."""
        self._drift = [
            0.5 * drift + 0.8 * self._chance.gauss(0, move)
            for drift, move in zip(self._drift, self._moves, strict=True)
        ]
        self.weights.append([now + step for now, step in zip(self.weights[-1], self._drift, strict=True)])

    def reading(self, lag: int = 0) -> Reading:
        served = self.weights[max(0, len(self.weights) - 1 - lag)]
        return Reading(self._rounded(self.weights[-1]), self._rounded(served))

    def _rounded(self, logprobs: list[float]) -> list[float]:
        return [
            value + self._chance.gauss(0, scale) for value, scale in zip(logprobs, self._rounds, strict=True)
        ]


NOISE = (1e-6, 1e-3, 0.01, 0.06)
"""Nats a token: fp32 on one processor, fp32 against other kernels, bf16 with unmerged and merged adapters."""
MOVEMENT = (0.0, 1e-4, 1e-3, 0.02, 0.12, 1.0)
"""Nats a token and step: from a learning rate of almost nothing to one that destroys the model."""


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("movement", MOVEMENT)
def test_a_healthy_run_of_any_dtype_and_learning_rate_raises_no_alarm(noise: float, movement: float) -> None:
    for seed in range(5):
        run = Arithmetic(noise, movement, seed)
        proof = run.begin()
        for _ in range(60):
            run.train()
            proof.judge(run.reading(), pushed=False)


LAGS: dict[str, Callable[[int], int]] = {
    "never updated": lambda step: step,
    "one step late": lambda step: 1,
    "every second one old": lambda step: step % 2,
}


@pytest.mark.parametrize("lag", LAGS.values(), ids=LAGS)
@pytest.mark.parametrize(("noise", "movement"), [(1e-6, 1e-4), (1e-3, 0.02), (0.06, 1.0)])
def test_a_sampler_that_lags_is_named_as_soon_as_the_movement_shows_it(
    lag: Callable[[int], int], noise: float, movement: float
) -> None:
    for seed in range(5):
        run = Arithmetic(noise, movement, seed)
        proof = run.begin()
        with pytest.raises(ProofError, match=r"^stale adapter"):
            for step in range(1, 5):
                run.train()
                proof.judge(run.reading(lag(step)), pushed=True)


def test_a_movement_within_the_noise_is_judged_over_several_steps() -> None:
    """One step shows nothing in bf16 at a low learning rate; a sampler that never follows is named anyway."""
    run = Arithmetic(0.06, 0.03, seed=1)
    proof = run.begin()
    with pytest.raises(ProofError, match=r"^stale adapter"):
        for step in range(1, 60):
            run.train()
            proof.judge(run.reading(step), pushed=True)


def test_in_bf16_a_sampler_that_is_never_updated_is_named_within_four_steps() -> None:
    for seed in range(20):
        run = Arithmetic(0.06, 0.12, seed)
        proof = run.begin()
        with pytest.raises(ProofError, match=r"^stale adapter"):
            for step in range(1, 5):
                run.train()
                proof.judge(run.reading(step), pushed=True)


@pytest.mark.parametrize("seed", range(20))
def test_an_adapter_that_merges_with_rounding_only_once_it_is_trained_is_no_suspect(seed: int) -> None:
    """Before the first update there is nothing to round, so the first reading has no noise at all."""
    rng = random.Random(seed)
    trainer = [rng.uniform(-6.0, -0.5) for _ in range(100)]
    proof = begin_proof(Reading(trainer, trainer), trainer, exact=False)
    for _ in range(12):
        trainer = [value + rng.gauss(0.0, 0.06) for value in trainer]
        sampler = [value + rng.gauss(0.0, 0.06) for value in trainer]
        proof.judge(Reading(trainer, sampler), pushed=True)
