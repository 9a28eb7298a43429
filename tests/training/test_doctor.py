"""`hermes rl doctor` on the numbers of real runs, one of each sickness. The healthy one is in test_rl."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from hermes.errors import HermesError
from hermes.rl.checks.doctor import Cause, diagnose
from hermes.training.data.batch import BatchConfig
from hermes.training.schedule import Schedule
from tests.engine.http.engine_process import Server
from tests.training.conftest import MakeRun
from tests.training.proxy import proxy, stale_sampler
from tests.training.rl_runs import always_the_first, trained
from tests.training.world import Environment, metrics


def causes(make_run: MakeRun, environment: Environment, change: Any = None, **more: Any) -> list[Cause]:
    run = make_run()
    change = change(environment) if change is always_the_first else change
    with contextlib.suppress(HermesError):  # as one that never had any signal ends
        trained(run, environment, change, **{"steps": 4, **more})
    return diagnose(metrics(run.folder), "running", None)


def worth_nothing(made: dict[str, Any]) -> None:
    made["scores"] = [0.0] * len(made["scores"])


def worth_all(made: dict[str, Any]) -> None:
    made["scores"] = [1.0 - 1e-12 * index for index in range(len(made["scores"]))]


def cut_off(made: dict[str, Any]) -> None:
    for index, facts in enumerate(made["overrides"]):
        facts["stop_reason"] = "max_tokens" if index else "completed"


def clumsy(made: dict[str, Any]) -> None:
    for facts in made["overrides"]:
        facts |= {"tool_calls": 2, "tool_errors": 1}


def half_blind(made: dict[str, Any]) -> None:
    made["inference_logprobs"][0] = [0.0] * len(made["inference_logprobs"][0])


@pytest.mark.parametrize(
    ("change", "more", "name", "evidence", "advice"),
    [
        (worth_nothing, {}, "reward never changes", "every rollout of 4 steps was worth 0", "env check"),
        (worth_all, {}, "no signal", "0% of the groups have unequal scores; mean reward 1", "harder tasks"),
        (cut_off, {}, "truncation", "75% of the rollouts were cut off", "max_token_length"),
        (clumsy, {}, "tool errors", "50% of the tool calls fail", "trajectories list"),
        (half_blind, {}, "untrainable rollouts", "2.0 of ", "token-exact"),
        (None, {"schedule": Schedule(3.0)}, "learning rate too high", "nats a step", "divide it by 3"),
        (
            always_the_first,
            {"steps": 9, "rules": BatchConfig(max_staleness=20)},
            "old rollouts",
            "4.0 steps old on average",
            "max_batches_offpolicy",
        ),
    ],
    ids=["worth-nothing", "worth-all", "cut-off", "tools", "refused", "rate", "stale"],
)
def test_a_sick_run_is_given_its_cause(
    make_run: MakeRun, environment: Environment, change: Any, more: Any, name: str, evidence: str, advice: str
) -> None:
    found = {cause.name: cause for cause in causes(make_run, environment, change, **more)}
    assert name in found, found
    assert evidence in found[name].evidence and advice in found[name].advice


def test_a_run_that_the_proof_has_ended_says_so_first(
    make_run: MakeRun, environment: Environment, engine: Server
) -> None:
    with proxy(engine.url, stale_sampler()) as url, pytest.raises(HermesError) as caught:
        trained(make_run(url=url), environment, steps=9)
    (first, *_) = diagnose([], "failed", f"trainer exited (1): {caught.value.message}")
    assert first.evidence.startswith("trainer exited (1): stale adapter: ")


def test_what_did_not_end_a_failed_run_is_not_given_as_its_reason() -> None:
    rows = [{"step": step, "health/truncated": 0.9, "health/group_signal": 1.0} for step in range(30)]
    first, *others = diagnose(rows, "failed", "trainer exited (1): wrong mask: ...")
    assert first.name == "the run failed" and "wrong mask" in first.evidence
    assert [cause.name for cause in others] == ["truncation"]
    assert others[0].evidence.endswith("(this did not end the run)")
    assert "did not end" not in diagnose(rows, "running", None)[0].evidence


def test_a_failure_with_a_known_cause_is_named_once_with_its_advice() -> None:
    rows = [{"step": step, "health/group_signal": 0.0, "reward/mean": 0.0} for step in range(30)]
    known = next(cause for cause in diagnose(rows, "running", None) if cause.name == "no signal")
    failed, *others = diagnose(rows, "failed", "trainer exited (1): no signal: all scores were equal")
    assert failed.name == "the run failed" and failed.advice == known.advice
    assert "no signal" not in [cause.name for cause in others]
