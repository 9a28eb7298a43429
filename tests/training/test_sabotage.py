"""The table of sabotage: whatever is wrong with a run is named within three steps; healthy runs never are.

The loop, the proof and the audit are the real ones; the policy is small. A kind that is found in a run gets a
row here.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from hermes.errors import HermesError
from hermes.training.monitor.proof import ProofError
from tests.training.small_policy import BASE, VOCABULARY, SmallPolicy, SmallRun, normalised

Group = dict[str, Any]
PROMPT = 8
WITHIN = 3
"""Steps from the first that is sabotaged, that one included."""


def stated(group: Group) -> list[list[float]]:
    """The logprobs of the answers."""
    return [row[PROMPT:] for row in group["inference_logprobs"]]


def state(group: Group, change: Callable[[list[float]], list[float]]) -> Group:
    """The group with other logprobs for its answers."""
    rows = [[*[1.0] * PROMPT, *change(values)] for values in stated(group)]
    return {**group, "inference_logprobs": rows}


def replace_tokens(group: Group, change: Callable[[list[int]], list[int]]) -> Group:
    """The group with other token ids, in prompt and answers, and masks that name them."""
    tokens = [change(row) for row in group["tokens"]]
    masks = [
        [-100 if mask == -100 else token for mask, token in zip(old, row, strict=True)]
        for old, row in zip(group["masks"], tokens, strict=True)
    ]
    return {**group, "tokens": tokens, "masks": masks}


def replace_answers(group: Group, change: Callable[[int, int], int]) -> Group:
    """The same for the answers; `change`: position and token."""
    return replace_tokens(
        group,
        lambda row: [token if n < PROMPT else change(n - PROMPT, token) for n, token in enumerate(row)],
    )


def shifted(by: int) -> Callable[[SmallRun], Group]:
    """Mask and logprobs name the tokens `by` before the sampled ones."""

    def sabotage(run: SmallRun) -> Group:
        group = run.rollouts()
        for index, tokens in enumerate(group["tokens"]):
            values = group["inference_logprobs"][index][PROMPT:]
            at = dict(zip(range(PROMPT - by, PROMPT - by + len(values)), values, strict=True))
            group["inference_logprobs"][index] = [at.get(n, 1.0) for n in range(len(tokens))]
            group["masks"][index] = [token if n in at else -100 for n, token in enumerate(tokens)]
        return group

    return sabotage


def changed(change: Callable[[list[float]], list[float]]) -> Callable[[SmallRun], Group]:
    return lambda run: state(run.rollouts(), change)


def each(change: Callable[[float], float]) -> Callable[[SmallRun], Group]:
    return changed(lambda values: [change(value) for value in values])


def other_temperature_stated(run: SmallRun) -> Group:
    """The logprobs are those of another temperature than the one that sampled, which is stated."""
    other = 0.7 if run.temperature == 1.0 else 1.0
    group = run.rollouts()
    weights = run.policy.published[run.sampling_path]
    rows = []
    for tokens in group["tokens"]:
        logprobs = normalised(run.policy.logits(weights, tokens[:-1], kind=3) / other)
        chosen = logprobs[np.arange(len(tokens) - 1), tokens[1:]]
        rows.append([*[1.0] * PROMPT, *chosen[PROMPT - 1 :].tolist()])
    return {**group, "inference_logprobs": rows}


def undeclared_temperature(run: SmallRun) -> Group:
    """Tokens and logprobs are of another temperature than the group says."""
    return run.rollouts(temperature=0.7 if run.temperature == 1.0 else 1.0)


def sampled_by(path: Callable[[SmallRun], str], name: str | None = None) -> Callable[[SmallRun], Group]:
    """Other weights sampled than the group names; `name`: what it names, else the right ones."""

    def sabotage(run: SmallRun) -> Group:
        group = run.rollouts(path(run))
        if name is not None:
            group["overrides"] = [{"policy_version": name} for _ in group["tokens"]]
        return group

    return sabotage


def foreign(run: SmallRun) -> str:
    """The weights of another run at the same engine."""
    path = "tinker://other/sampler_weights/step-1"
    other = np.random.default_rng(9).normal(0, 0.3, run.policy.weights.shape)
    run.policy.published.setdefault(path, other)
    return path


def older(run: SmallRun) -> str:
    return run.paths[max(0, len(run.paths) - 2 - run.age)]


def without_version(group: Group) -> Group:
    return {**group, "overrides": [{} for _ in group["tokens"]]}


def swapped_logprobs(run: SmallRun) -> Group:
    group = run.rollouts()
    rows = group["inference_logprobs"]
    return {**group, "inference_logprobs": [*rows[1:], rows[0]]}


def one_in_four(run: SmallRun) -> Group:
    """One sequence of a group has the logprobs of another token."""
    group = run.rollouts()
    row = group["inference_logprobs"][0]
    group["inference_logprobs"][0] = [*row[:PROMPT], *row[PROMPT + 1 :], row[PROMPT]]
    return group


def end_token(run: SmallRun) -> Group:
    """The environment appends an end token to each answer, as if it had been sampled."""
    group = run.rollouts()
    for name, value in (("tokens", 0), ("masks", 0), ("inference_logprobs", -0.01)):
        group[name] = [[*row, value] for row in group[name]]
    return group


def prompt_in_mask(run: SmallRun) -> Group:
    """Two tokens of the prompt are trained too, with invented logprobs."""
    group = run.rollouts()
    for index, tokens in enumerate(group["tokens"]):
        group["masks"][index][PROMPT - 2 : PROMPT] = tokens[PROMPT - 2 : PROMPT]
        group["inference_logprobs"][index][PROMPT - 2 : PROMPT] = [-1.0, -1.0]
    return group


def cut_prompt(count: int) -> Callable[[SmallRun], Group]:
    """The first tokens of the prompt are not sent."""

    def sabotage(run: SmallRun) -> Group:
        group = run.rollouts()
        for name in ("tokens", "masks", "inference_logprobs"):
            group[name] = [row[count:] for row in group[name]]
        return group

    return sabotage


def other_prompt(run: SmallRun) -> Group:
    other = run.rollouts()["tokens"][0][:PROMPT]
    return replace_tokens(run.rollouts(), lambda row: [*other, *row[PROMPT:]])


def truncated_unsaid(run: SmallRun) -> Group:
    """Logprobs of a distribution that top-p has cut, which the group does not say."""
    return state(run.rollouts(), lambda values: [min(0.0, value - math.log(0.6)) for value in values])


ENVIRONMENT: dict[str, Callable[[SmallRun], Group]] = {
    "mask and logprobs one token early": shifted(1),
    "mask and logprobs two tokens early": shifted(2),
    "logprobs one token late": changed(lambda values: [values[-1], *values[:-1]]),
    "logprobs one token early": changed(lambda values: [*values[1:], values[0]]),
    "logprobs reversed": changed(lambda values: values[::-1]),
    "logprobs sorted": changed(sorted),
    "logprobs of another rollout": swapped_logprobs,
    "logprobs of one rollout in four": one_in_four,
    "logprobs times 0.9": each(lambda value: 0.9 * value),
    "logprobs times 1.1": each(lambda value: 1.1 * value),
    "logprobs to base 2": each(lambda value: value / math.log(2)),
    "logprobs to base 10": each(lambda value: value / math.log(10)),
    "logprobs 0.3 too low": each(lambda value: value - 0.3),
    "logprobs rounded to integers": each(lambda value: float(round(value))),
    "logprobs all the same": each(lambda value: -1.0),
    "logprobs clipped at -1": each(lambda value: max(value, -1.0)),
    "probabilities for logprobs": each(lambda value: -math.exp(value)),
    "logprobs of the mean of the answer": changed(lambda values: [sum(values) / len(values)] * len(values)),
    "logprobs at another temperature": other_temperature_stated,
    "a temperature that is not stated": undeclared_temperature,
    "a top-p that is not stated": truncated_unsaid,
    "another tokenizer": lambda run: replace_tokens(
        run.rollouts(), lambda row: [(token * 29 + 7) % VOCABULARY for token in row]
    ),
    "answers of another tokenizer": lambda run: replace_answers(
        run.rollouts(), lambda n, token: (token * 29 + 7) % VOCABULARY
    ),
    "ids one too high": lambda run: replace_answers(
        run.rollouts(), lambda n, token: (token + 1) % VOCABULARY
    ),
    "every third token re-tokenised": lambda run: replace_answers(
        run.rollouts(), lambda n, token: token if n % 3 else (token + 31) % VOCABULARY
    ),
    "dropped BOS": cut_prompt(1),
    "half of the prompt dropped": cut_prompt(4),
    "the prompt of another task": other_prompt,
    "an end token that was not sampled": end_token,
    "tokens of the prompt in the mask": prompt_in_mask,
    "sampled by the base model": sampled_by(lambda run: BASE),
    "sampled by the base model, which is stated": sampled_by(lambda run: BASE, name=BASE),
    "sampled by another run": sampled_by(foreign),
    "sampled by another run, nothing stated": lambda run: without_version(run.rollouts(foreign(run))),
    "sampled by the weights before": sampled_by(older),
}
CAUSES = {
    "mask and logprobs one token early": "wrong mask",
    "logprobs one token late": "wrong mask",
    "logprobs of one rollout in four": "wrong mask",
    "another tokenizer": "wrong mask",
    "dropped BOS": "wrong mask",
    "logprobs times 0.9": "wrong logprobs",
    "logprobs to base 2": "wrong logprobs",
    "logprobs at another temperature": "wrong temperature",
    "a temperature that is not stated": "wrong temperature",
    "sampled by the base model": "stale adapter",
    "sampled by the base model, which is stated": "stale adapter",
    "sampled by the weights before": "stale adapter",
}
"""Those whose cause can be told exactly."""
CASES = [(temperature, age) for temperature in (1.0, 0.7) for age in (0, 2)]


def in_turn(kinds: Iterable[str]) -> list[ParameterSet]:
    """Every kind in every case; a push tries each kind in one case and the kinds share the cases."""
    return [
        pytest.param(
            kind,
            *case,
            id=f"{kind}-{case[0]}-{case[1]}",
            marks=() if number % len(CASES) == place else pytest.mark.slow,
        )
        for number, kind in enumerate(kinds)
        for place, case in enumerate(CASES)
    ]


NAMES = ("stale adapter", "wrong mask", "wrong temperature", "wrong logprobs", "no-op optimizer")


def warmed_up(run: SmallRun, steps: int = 3) -> None:
    """Old rollouts need weights that are old."""
    for _ in range(steps):
        run.healthy_step()


def end_of(run: SmallRun, make_step: Callable[[], object]) -> HermesError:
    """How the run ends, within `WITHIN` steps from the first in which something was made wrong."""
    healthy, sabotaged = 0, 0
    while sabotaged < WITHIN:
        assert healthy < 5, "nothing is sabotaged"
        try:
            make_step()
        except HermesError as error:
            assert run.faults, f"an alarm before anything was wrong: {error.message}"
            return error
        healthy, sabotaged = (healthy, sabotaged + 1) if run.faults else (healthy + 1, 0)
    pytest.fail(f"not named within {WITHIN} steps")


@pytest.mark.parametrize(("kind", "temperature", "age"), in_turn(ENVIRONMENT))
def test_a_fault_of_an_environment_is_named_within_three_steps(
    tmp_path: Path, kind: str, temperature: float, age: int
) -> None:
    run = SmallRun(tmp_path, SmallPolicy(), temperature, age)
    warmed_up(run)

    def make_step() -> None:
        run.faults += 1
        run.train([ENVIRONMENT[kind](run) for _ in range(2)])

    error = end_of(run, make_step)
    assert isinstance(error, ProofError) and error.hint
    assert error.cause in ((CAUSES[kind],) if kind in CAUSES else NAMES), error.message


def test_weights_of_a_dropped_checkpoint_can_be_scored_as_long_as_rollouts_of_them_arrive(
    tmp_path: Path,
) -> None:
    run = SmallRun(tmp_path, SmallPolicy(), age=4)
    for _ in range(9):
        run.healthy_step()
        run.session.checkpoint(run.step, None)
    assert len(run.session.state.kept) < 9
    assert set(run.session.samplers()) <= run.policy.published.keys()

    def make_step() -> None:
        run.faults += 1
        run.train([ENVIRONMENT["sampled by the base model"](run) for _ in range(2)])

    error = end_of(run, make_step)
    assert isinstance(error, ProofError) and error.cause == "stale adapter"


def rounded(run: SmallRun, size: float, chance: np.random.Generator) -> Group:
    """The logprobs of a sampler that rounds, as bf16 does: by so many nats where the token is uncertain."""

    def change(values: list[float]) -> list[float]:
        return [min(0.0, value + size * -math.expm1(value) * chance.normal()) for value in values]

    return state(run.rollouts(), change)


@pytest.mark.parametrize(("temperature", "age"), CASES)
def test_a_sampler_that_begins_to_round_is_a_warning_and_never_another_cause(
    tmp_path: Path, temperature: float, age: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Importance weights correct it, so the run goes on."""
    seed = secrets.randbelow(1 << 30)
    print("seed", seed)
    chance = np.random.default_rng(seed)
    # a low rate: a policy that has learned its task gets equal rewards, and nothing is trained or checked
    run = SmallRun(tmp_path, SmallPolicy(), temperature, age, seed=seed, rate=0.05)
    warmed_up(run, int(chance.integers(3, 12)))
    size = chance.uniform(0.03, 0.1)
    metrics = [run.train([rounded(run, size, chance) for _ in range(2)]) for _ in range(12)]
    assert sum(row.get("proof/warning", 0.0) for row in metrics[:WITHIN]) == 1
    assert not any("proof/warning" in row for row in metrics[WITHIN:])
    assert [record.getMessage()[:15] for record in caplog.records] == ["other precision"]

    def make_step() -> None:
        run.faults += 1
        run.train([ENVIRONMENT["logprobs to base 2"](run) for _ in range(2)])

    assert isinstance(end_of(run, make_step), ProofError), (
        "what rounding does not explain is an end as before"
    )


@pytest.mark.parametrize("kind", ["logprobs reversed", "sampled by the base model", "dropped BOS"])
def test_a_user_can_go_on_after_a_fault(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    run = SmallRun(tmp_path, SmallPolicy(), proof_ends_run=False)
    warmed_up(run)
    metrics = [run.train([ENVIRONMENT[kind](run) for _ in range(2)]) for _ in range(4)]
    assert any(row.get("proof/warning") for row in metrics)
    assert CAUSES[kind] in caplog.text if kind in CAUSES else "wrong" in caplog.text


def test_the_error_says_how_to_go_on(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, SmallPolicy())
    warmed_up(run)

    def make_step() -> None:
        run.faults += 1
        run.train([ENVIRONMENT["logprobs reversed"](run) for _ in range(2)])

    assert "hermes rl resume RUN --set proof=warn" in str(end_of(run, make_step).hint)


@pytest.mark.parametrize(("temperature", "age"), CASES)
def test_a_fault_of_every_second_batch_is_not_forgotten(tmp_path: Path, temperature: float, age: int) -> None:
    """Too small a fault to end the run alone: the weights before, at a low rate, in every second batch."""
    run = SmallRun(tmp_path, SmallPolicy(), temperature, age, rate=0.05)
    warmed_up(run)

    def make_step() -> None:
        wrong = run.step % 2
        run.faults += wrong
        run.train([run.rollouts(older(run) if wrong else None) for _ in range(2)])

    error = end_of(run, make_step)
    assert isinstance(error, ProofError) and error.cause == "stale adapter"


def stale_publish(lag: Callable[[int], int]) -> Callable[[SmallRun], None]:
    """Publications from now on serve the weights of so many publications before."""

    def sabotage(run: SmallRun) -> None:
        policy, publish = run.policy, run.policy.publish
        history, count = [policy.weights], 0

        def change(name: str) -> str:
            nonlocal count
            path = publish(name)
            history.append(policy.weights)
            count += 1
            run.faults += lag(count) > 0
            policy.published[path] = history[max(0, len(history) - 1 - lag(count))]
            return path

        policy.publish = change  # type: ignore[method-assign]

    return sabotage


def scaled_publish(factor: float) -> Callable[[SmallRun], None]:
    """The sampler applies the adapter at another scale."""

    def sabotage(run: SmallRun) -> None:
        policy, publish = run.policy, run.policy.publish

        def change(name: str) -> str:
            path = publish(name)
            run.faults += 1
            policy.published[path] = factor * policy.weights
            return path

        policy.publish = change  # type: ignore[method-assign]

    return sabotage


def dropped_updates(every: int) -> Callable[[SmallRun], None]:
    def sabotage(run: SmallRun) -> None:
        policy, optim_step = run.policy, run.policy.optim_step
        count = 0

        def change(rate: float, *rest: float) -> dict[str, float]:
            nonlocal count
            count += 1
            dropped = count % every == 0
            run.faults += dropped
            return optim_step(0.0 if dropped else rate, *rest)

        policy.optim_step = change  # type: ignore[method-assign]

    return sabotage


def lost_gradient(run: SmallRun) -> None:
    """The optimizer is given gradients of 0, however many advantages there are."""
    policy, optim_step = run.policy, run.policy.optim_step

    def change(rate: float, *rest: float) -> dict[str, float]:
        run.faults += 1
        policy._gradient = np.zeros_like(policy._gradient)
        return optim_step(rate, *rest)

    policy.optim_step = change  # type: ignore[method-assign]


def broken_weights(run: SmallRun) -> None:
    policy, optim_step = run.policy, run.policy.optim_step

    def change(rate: float, *rest: float) -> dict[str, float]:
        metrics = optim_step(rate, *rest)
        run.faults += 1
        policy.weights = policy.weights * np.nan
        return metrics

    policy.optim_step = change  # type: ignore[method-assign]


ENGINE: dict[str, tuple[Callable[[SmallRun], None], str]] = {
    "a sampler that is never updated": (stale_publish(lambda count: count), "stale adapter"),
    "a sampler one step behind": (stale_publish(lambda count: 1), "stale adapter"),
    "every second sampler old": (stale_publish(lambda count: count % 2), "stale adapter"),
    "an adapter that is not applied": (scaled_publish(0.0), "stale adapter"),
    "an adapter at half its scale": (scaled_publish(0.5), "stale adapter"),
    "an adapter at twice its scale": (scaled_publish(2.0), "stale adapter"),
    "an optimizer that does nothing": (dropped_updates(1), "no-op optimizer"),
    "every second update dropped": (dropped_updates(2), "no-op optimizer"),
    "a gradient of 0": (lost_gradient, "the gradient is 0"),
    "weights that are not finite": (broken_weights, "is not a finite number"),
}


@pytest.mark.parametrize(("kind", "temperature", "age"), in_turn(ENGINE))
def test_a_fault_of_the_engine_is_named_within_three_steps_of_its_first(
    tmp_path: Path, kind: str, temperature: float, age: int
) -> None:
    sabotage, cause = ENGINE[kind]
    run = SmallRun(tmp_path, SmallPolicy(), temperature, age)
    warmed_up(run)
    sabotage(run)
    error = end_of(run, run.healthy_step)
    assert cause in error.message


def test_the_table_has_at_least_thirty_kinds_at_two_temperatures_fresh_and_stale() -> None:
    assert len(ENVIRONMENT) + len(ENGINE) >= 30
    assert {(temperature, age > 0) for temperature, age in CASES} == {
        (temperature, stale) for temperature in (1.0, 0.7) for stale in (False, True)
    }


HEALTHY: dict[str, dict[str, Any]] = {
    "as in the table": {},
    "cold": {"temperature": 0.7},
    "cold and old": {"temperature": 0.7, "age": 3},
    "warm": {"temperature": 1.3},
    "warm and old": {"temperature": 1.3, "age": 2},
    "one step old": {"age": 1},
    "four steps old": {"age": 4},
    "a low rate": {"rate": 0.001},
    "a high rate": {"rate": 1.0},
    "a high rate and old": {"rate": 0.5, "age": 4},
    "answers of one token": {"tokens": 1, "groups": 6},
    "answers of two tokens, cold": {"tokens": 2, "groups": 4, "temperature": 0.7},
    "long answers": {"tokens": 40},
    "many groups": {"groups": 8},
    "a penalty": {"kl": 0.1},
    "a penalty, cold and old": {"kl": 0.1, "temperature": 0.7, "age": 2},
    "ppo": {"loss": "ppo"},
    "ppo, two updates a batch, old": {"loss": "ppo", "epochs": 2, "age": 2},
    "cispo, cold": {"loss": "cispo", "temperature": 0.7},
    "other kernels": {"rounding": 1e-4, "age": 1},
    "bf16": {"rounding": 0.02},
    "bf16 whose probe agrees exactly": {"rounding": 0.03, "agreeing": True},
    "bf16, cold and old": {"rounding": 0.02, "temperature": 0.7, "age": 2},
    "bf16, merged": {"rounding": 0.06, "age": 1},
    "bf16, merged, confident": {"rounding": 0.06, "confidence": 3.0, "age": 2},
    "confident": {"confidence": 4.0},
    "confident, cold and old": {"confidence": 3.0, "temperature": 0.7, "age": 2},
}


@pytest.mark.parametrize("kind", HEALTHY)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_healthy_run_raises_no_alarm(tmp_path: Path, kind: str, seed: int) -> None:
    options = dict(HEALTHY[kind])
    policy = SmallPolicy(seed, options.pop("rounding", 1e-6), options.pop("confidence", 1.0))
    if options.pop("agreeing", False):
        # Trainer and prompt scores have the same kernels; sampling has others.
        policy.score = lambda weights, sequences, tails=None: [  # type: ignore[method-assign]
            policy._scored(policy.published[weights], tokens, kind=1) for tokens in sequences
        ]
    run = SmallRun(tmp_path, policy, seed=seed, **options)
    strikes = sum(run.healthy_step().get("proof/strike", 0.0) for _ in range(15))
    assert strikes == 0


def test_a_group_that_states_its_top_p_is_no_suspect(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, SmallPolicy(confidence=2.0))
    warmed_up(run)
    for _ in range(3):
        run.train([_nucleus(run, 0.8) for _ in range(2)])


def _nucleus(run: SmallRun, top_p: float) -> Group:
    """A group whose tokens are drawn from the likeliest ones that have `top_p` of the probability."""
    group = run.rollouts()
    chance = np.random.default_rng(run.step)
    weights = run.policy.published[run.sampling_path]
    for index, row in enumerate(group["tokens"]):
        tokens, values = row[:PROMPT], []
        for _ in range(run.tokens):
            chances = np.exp(normalised(run.policy.logits(weights, tokens, kind=3)[-1]))
            order = np.argsort(-chances)
            kept = order[: int(np.searchsorted(chances[order].cumsum(), top_p)) + 1]
            nucleus = chances[kept] / chances[kept].sum()
            position = int(chance.choice(len(kept), p=nucleus))
            tokens = [*tokens, int(kept[position])]
            values.append(math.log(nucleus[position]))
        group["tokens"][index] = tokens
        group["masks"][index] = [*[-100] * PROMPT, *tokens[PROMPT:]]
        group["inference_logprobs"][index] = [*[1.0] * PROMPT, *values]
    return {**group, "generation_params": {"temperature": 1.0, "top_p": top_p}}
