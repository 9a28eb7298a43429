"""Sabotage: a stale adapter, a no-op optimizer and a wrong mask each end the run within three steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hermes.training.probe import Proof, ProofError, Reading, begin
from hermes.training.session import Run
from tests.engine.http.engine_process import Server
from tests.training.conftest import MakeRun
from tests.training.proxy import proxy
from tests.training.test_rl import trained
from tests.training.test_sft import few
from tests.training.world import Environment, metrics


def stale_sampler() -> Callable[[str, Any], Any]:
    """Whoever asks for a checkpoint's weights gets the first one's."""
    first: list[str] = []

    def change(path: str, body: Any) -> Any:
        if path.endswith("/create_sampling_session") and body.get("model_path"):
            first.append(body["model_path"])
            body["model_path"] = first[0]
        return body

    return change


def no_update(path: str, body: Any) -> Any:
    """The optimizer is asked, and does nothing."""
    if path.endswith("/optim_step"):
        body["adam_params"]["learning_rate"] = 0.0
    return body


def steps_made(run: Run) -> int:
    return len(metrics(run.folder)) if (run.folder / "metrics.jsonl").exists() else 0


def test_a_stale_adapter_ends_the_run(make_run: MakeRun, environment: Environment, engine: Server) -> None:
    with proxy(engine.url, stale_sampler()) as url:
        run = make_run(url=url)
        with pytest.raises(ProofError, match=r"^stale adapter: the trainer's weights moved") as caught:
            trained(run, environment, steps=9)
    assert caught.value.cause == "stale adapter" and steps_made(run) < 3


def test_an_optimizer_that_does_nothing_ends_the_run(
    make_run: MakeRun, environment: Environment, engine: Server
) -> None:
    with proxy(engine.url, no_update) as url:
        run = make_run(url=url)
        with pytest.raises(ProofError, match=r"^no-op optimizer: 2 updates with gradients"):
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
    first, *rest = (Reading(*one) for one in readings)
    proof = begin(first, first.trainer)
    for reading in rest:
        proof.judge(reading, pushed=pushed)
    return proof


def test_a_sampler_that_follows_is_no_suspect_however_noisy() -> None:
    judged(([-1.0, -2.0], [-1.01, -1.99]), ([-0.9, -1.9], [-0.91, -1.89]), ([-0.5, -1.5], [-0.51, -1.49]))


def test_one_strike_is_forgiven_and_two_in_a_row_are_not() -> None:
    start, moved, further = ([-1.0], [-1.0]), ([-0.8], [-1.0]), ([-0.6], [-1.0])
    judged(start, moved, ([-0.7], [-0.7]), ([-0.5], [-0.7]))
    with pytest.raises(ProofError, match="stale"):
        judged(start, moved, further)


def test_weights_that_rest_without_gradients_are_no_suspect() -> None:
    judged(([-1.0], [-1.0]), ([-1.0], [-1.0]), ([-1.0], [-1.0]), pushed=False)
