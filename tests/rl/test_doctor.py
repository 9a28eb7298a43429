"""Metrics → named causes; samples → a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hermes.config.load import load
from hermes.rl.checks.doctor import diagnose
from hermes.rl.checks.preflight import _suggestions, above_least, estimate, summarise, verdict
from hermes.rl.config.resolve import resolve, select
from tests.rl.world import ENVIRONMENTS

HEALTHY = {
    "reward/mean": 0.5,
    "reward/min": 0.0,
    "reward/max": 1.0,
    "health/group_signal": 0.8,
    "health/truncated": 0.02,
    "health/staleness": 0.5,
    "health/tool_errors": 0.05,
    "health/entropy": 1.0,
    "logprobs/diff": 0.02,
    "probe/gap": 0.2,
    "probe/followed": 0.97,
    "data/refused": 0.0,
    "data/sequences": 8.0,
}


def _rows(changes: dict[str, float] | None = None, count: int = 10) -> list[dict[str, Any]]:
    return [{"step": step, **HEALTHY, **(changes or {})} for step in range(1, count + 1)]


def test_a_healthy_run_has_no_causes() -> None:
    assert diagnose(_rows(), "running", None) == []


@pytest.mark.parametrize(
    ("changes", "cause", "evidence"),
    [
        ({"health/group_signal": 0.1, "reward/mean": 0.01}, "no signal", "10% of the groups"),
        ({"health/truncated": 0.4}, "truncation", "40% of the rollouts"),
        (
            {"probe/followed": 0.1},
            "stale adapter",
            "less than 40% or more than 180% of the trainer's movement (last 10%)",
        ),
        ({"health/staleness": 6.0}, "old rollouts", "6.0 steps old"),
        ({"probe/moved": 0.9}, "learning rate too high", "0.9 nats a step"),
        ({"health/tool_errors": 0.6}, "tool errors", "60%"),
        ({"health/forbidden_paths": 0.031}, "forbidden paths", "3.1% of the rollouts"),
        ({"reward/min": 0.0, "reward/max": 0.0, "reward/mean": 0.0}, "reward never changes", "worth 0"),
        ({"data/refused": 4.0}, "untrainable rollouts", "4.0 of "),
    ],
)
def test_a_sick_run_is_given_its_cause_with_evidence(
    changes: dict[str, float], cause: str, evidence: str
) -> None:
    found = diagnose(_rows(changes), "running", None)
    assert cause in [each.name for each in found]
    assert evidence in next(each.evidence for each in found if each.name == cause)


def test_what_to_do_about_no_signal_depends_on_whether_the_tasks_are_too_hard_or_too_easy() -> None:
    def advice(reward: float) -> str:
        return diagnose(_rows({"health/group_signal": 0.0, "reward/mean": reward}), "running", None)[0].advice

    assert "SFT" in advice(0.0) and "harder" in advice(0.98)


def test_a_falling_entropy_is_named_a_collapse() -> None:
    rows = _rows()
    for index, row in enumerate(rows):
        row["health/entropy"] = 1.0 / 10**index
    assert [each.name for each in diagnose(rows, "running", None)] == ["entropy collapse"]


def test_a_flat_reward_is_named_only_after_enough_steps() -> None:
    assert diagnose(_rows(count=19), "running", None) == []
    assert [each.name for each in diagnose(_rows(count=20), "running", None)] == ["no progress"]


def test_a_failed_run_and_one_without_steps_say_so_first() -> None:
    assert diagnose([], "failed", "trainer exited (1): no key")[0].evidence == "trainer exited (1): no key"
    assert [each.name for each in diagnose([], "starting", None)] == ["no step yet"]


@pytest.mark.parametrize(
    ("scores", "signal", "begins"),
    [
        ([0.0] * 8, 0.0, "will not learn: no rollout earned anything"),
        ([-1.0] * 8, 0.0, "will not learn: every rollout earned -1"),
        ([10.0] * 8, 0.0, "will not learn: every rollout earned 10"),
        ([1.0] * 8, 0.0, "little to learn"),
        ([0.0, 0.0, 1.0, 1.0], 0.0, "will not learn: within each group"),
        ([1.0] * 49 + [0.0], 0.2, "little to learn: nearly every rollout earns 1 "),
        ([-1.0, 0.0, 0.0, -1.0], 1.0, "will learn:"),
        ([-0.2, -0.9, -0.5, -0.7], 1.0, "will learn:"),
        ([4.0, 5.0, 6.0, 4.6], 1.0, "will learn:"),
        ([0.0, 10.0, 3.0, 7.0], 0.9, "will learn:"),
        ([0.0, 0.0, 0.0, 1.0], 0.2, "will learn slowly"),
    ],
)
def test_the_verdict_is_plain_whatever_the_range_of_the_rewards(
    scores: list[float], signal: float, begins: str
) -> None:
    assert verdict(scores, signal, 0.1).startswith(begins)
    assert "cut off" not in verdict(scores, signal, 0.1)
    assert verdict(scores, signal, 0.8).endswith("80% of the rollouts are cut off: raise max_token_length")


def test_above_the_least_is_what_earned_more_than_0_or_than_the_lowest() -> None:
    assert above_least([0.0, 0.5, 1.0, 0.0]) == 0.5
    assert above_least([-1.0, -0.5, 0.0, -1.0]) == 0.5
    assert above_least([4.0, 5.0]) == 1.0


def test_the_line_of_the_authors_code_is_the_first_cause() -> None:
    slow = diagnose(_rows(), "running", None, "grading has taken 120 s in my_env.py:31")[0]
    assert (slow.name, slow.evidence) == ("the grader hangs", "grading has taken 120 s in my_env.py:31")
    failing = "a group failed (grader): GraderError: compute_reward raised KeyError: 'x' (my_env.py:9)"
    assert diagnose(_rows(), "running", None, failing)[0].evidence == failing


def test_samples_are_summed_up_as_the_trainer_would_see_them() -> None:
    groups = [
        {
            "tokens": [[1, 2], [1, 2, 3, 4]],
            "scores": [0.0, 1.0],
            "overrides": [
                {"stop_reason": "completed", "tool_calls": 3, "tool_errors": 1},
                {"stop_reason": "truncated", "tool_calls": 1, "tool_errors": 1},
            ],
        },
        {"tokens": [[1], [1]], "scores": [0.0, 0.0], "overrides": None},
    ]
    found = summarise(groups, 2.0)
    assert found.distinct == 0.75
    assert found.scores == ((0.0, 1.0), (0.0, 0.0))
    assert (found.sequence_tokens, found.truncated, found.tool_errors) == (2.0, 0.5, 0.5)
    assert found.success is None, "the environment gives no verdict, and none is made of its rewards"
    groups[0]["overrides"] = [{"success": True}, {"success": False}]
    assert summarise(groups, 2.0).success == 0.5


@pytest.mark.parametrize(
    ("signal", "distinct", "now", "suggested"),
    [(0.0, 0.25, 1.0, 1.2), (0.0, 0.25, 1.5, 1.5), (0.0, 0.9, 1.0, 1.0), (0.9, 0.25, 0.7, 0.7)],
)
def test_a_higher_temperature_is_suggested_where_the_answers_are_alike(
    tmp_path: Path, signal: float, distinct: float, now: float, suggested: float
) -> None:
    config = load({"rl.values": {"agent_temperature": now}}, {"HERMES_HOME": str(tmp_path)})
    resolved = resolve(config, select(config, str(ENVIRONMENTS / "letters.py")))
    assert _suggestions(0.5, signal, distinct, resolved)["agent_temperature"] == suggested


def test_what_is_not_known_of_a_run_is_not_estimated(tmp_path: Path) -> None:
    config = load(environ={"HERMES_HOME": str(tmp_path)})
    resolved = resolve(config, select(config, str(ENVIRONMENTS / "letters.py")))
    known = estimate(resolved, 0.5, 0.25, on_cpu=True)
    assert (known["seconds_per_step"], known["update_share"]) == (24.0, 0.33) and known["memory_gb"] > 1
    elsewhere = estimate(resolved, 0.5, None, on_cpu=False)
    assert elsewhere["seconds_per_step"] == 16.0
    assert elsewhere["update_share"] is elsewhere["memory_gb"] is None
