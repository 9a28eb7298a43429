"""Figures over a run, against values computed by hand."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hermes.batch.output.statistics import describe_rewards, has_reasoning, percentiles, spread
from hermes.core import JSONObject
from hermes.core.stats import quantile
from tests.batch.made import START_MS, done, failed, filtered, finish, usage


def statistics(folder: Path, *entries: Any, **known: Any) -> JSONObject:
    keys = dict.fromkeys(entry.key for entry in entries)
    return finish(folder, entries, keys=keys, **known).statistics


def test_quantiles_lie_linearly_between_neighbours() -> None:
    assert [quantile([10, 20, 30, 40, 50], share) for share in (0, 0.5, 0.9, 1)] == [10, 30, 46, 50]
    assert quantile([7], 0.99) == 7
    assert percentiles([3.0, 1.0]) == {"p50": 2.0, "p90": pytest.approx(2.8), "p99": pytest.approx(2.98)}
    assert percentiles([]) is None


def test_a_spread_tells_how_often_each_number_occurs() -> None:
    counts = {"1": 3, "5": 1}
    assert spread(Counter({1: 3, 5: 1})) == {
        "mean": 2.0,
        "p50": 1,
        "p90": pytest.approx(3.8),
        "max": 5,
        "counts": counts,
    }
    assert spread(Counter()) is None


def test_rewards_have_mean_deviation_and_quarters() -> None:
    got = describe_rewards([1.0, 0.0, 0.5, 0.5], grader_failures=2)
    assert got is not None
    assert (got["count"], got["grader_failures"], got["mean"]) == (4, 2, 0.5)
    assert got["std"] == pytest.approx(math.sqrt(0.5 / 3))
    assert [got[name] for name in ("min", "p25", "p50", "p75", "max")] == [0.0, 0.375, 0.5, 0.625, 1.0]
    assert describe_rewards([], 0) is None
    only_failures = describe_rewards([], 1)
    assert only_failures is not None and (only_failures["mean"], only_failures["std"]) == (None, None)


def test_thinking_counts_only_if_there_is_some() -> None:
    assert has_reasoning("<think>\nhm\n</think>\nanswer")
    assert not has_reasoning("<think>\n\n</think>\nanswer")
    assert not has_reasoning("answer, not <think>ing</think>")


def test_tools_are_counted_with_rates_in_percent_over_those_offered(tmp_path: Path) -> None:
    web = {"count": 3, "success": 2, "failure": 1}
    ghost = {"count": 1, "success": 0, "failure": 1}
    got = statistics(
        tmp_path,
        done("a", tool_names=["web", "file"], tool_stats={"web": web}),
        done("b", tool_names=["web"], tool_stats={"ghost": ghost}),
    )
    assert got["tool_statistics"] == {
        "file": {"count": 0, "success": 0, "failure": 0, "success_rate": None, "failure_rate": None},
        "web": {**web, "success_rate": 66.67, "failure_rate": 33.33},
    }
    assert got["unknown_tools"] == {"ghost": {**ghost, "success_rate": 0.0, "failure_rate": 100.0}}
    assert got["tool_calls"]["counts"] == {"1": 1, "3": 1}


def test_reasoning_coverage_is_over_assistant_turns(tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "<think>not mine</think>"},
        {"from": "gpt", "value": "<think>\nhm\n</think>\nyes"},
        {"from": "gpt", "value": "no"},
    ]
    got = statistics(tmp_path, done("a", conversations=turns), done("b"))["reasoning_statistics"]
    assert got == {"total_assistant_turns": 3, "turns_with_reasoning": 1, "turns_without_reasoning": 2}


def test_tokens_and_costs_are_summed_over_everything_that_was_paid_for(tmp_path: Path) -> None:
    got = statistics(
        tmp_path,
        done("a", usage=usage(1, 2, 3, 4, 5), cost_usd=0.25),
        filtered("b", "no reasoning", usage=usage(10, 20, 30, 40, 50), cost_usd=0.5),
    )
    assert got["tokens"] == usage(11, 22, 33, 44, 55)
    assert (got["cost_usd"], got["known_cost_usd"], got["unpriced"]) == (0.75, 0.75, 0)


def test_one_unknown_price_makes_the_cost_unknown_and_keeps_what_is_known(tmp_path: Path) -> None:
    got = statistics(tmp_path, done("a", cost_usd=0.25), done("b", cost_usd=None))
    assert (got["cost_usd"], got["known_cost_usd"], got["unpriced"]) == (None, 0.25, 1)


def test_samples_outcomes_and_draws_are_counted(tmp_path: Path) -> None:
    cut = {"stop_reason": "max_turns", "boundary": "limit", "error_type": "LimitError", "detail": "…"}
    got = statistics(
        tmp_path,
        done("a", toolsets=["web", "file"]),
        done("b", toolsets=["web"], outcome=cut, turns=4),
        filtered("c", "no reasoning"),
        failed("d", "ProviderError: busy"),
    )
    assert got["samples"] == {"planned": 4, "done": 2, "filtered": 1, "failed": 1, "not_run": 0}
    assert got["outcomes"] == {"completed": 2, "max_turns": 1}
    assert got["toolsets_offered"] == {"web": 2, "file": 1}
    assert got["turns"]["counts"] == {"1": 2, "4": 1}
    assert (got["total_prompts"], got["run_name"], got["model"]) == (4, "run", "test/model")


def test_pass_rate_is_per_prompt_and_only_for_rewards_of_0_and_1(tmp_path: Path) -> None:
    rewards = {"a": (1.0, 1.0), "b": (1.0, 0.0), "c": (0.0, None)}
    entries = [done(key, n, reward=value) for key, pair in rewards.items() for n, value in enumerate(pair)]
    got = finish(tmp_path / "1", entries, keys="abc", samples_per_prompt=2).statistics
    assert got["pass_rate"] == {
        "prompts": 3,
        "mean": 0.5,
        "solved_always": 1,
        "solved_sometimes": 1,
        "solved_never": 1,
    }
    graded = finish(tmp_path / "2", [done("a", reward=0.5), done("b", reward=1.0)], keys="ab").statistics
    assert graded["pass_rate"] is None


def test_a_grader_failure_is_counted_and_is_no_reward(tmp_path: Path) -> None:
    got = statistics(tmp_path, done("a", reward=1.0), done("b", reward_error="KeyError: 'x'"))["reward"]
    assert (got["count"], got["grader_failures"], got["mean"]) == (1, 1, 1.0)


def test_times_come_from_the_rows(tmp_path: Path) -> None:
    got = statistics(
        tmp_path,
        done("a", created_at_ms=START_MS + 5_000, duration_s=1.5, latency_ms=[100.0, 300.0]),
        done("b", created_at_ms=START_MS, duration_s=2.5, latency_ms=[200.0]),
    )["timing"]
    assert got["started_at"] == "2023-11-14T22:13:20.000+00:00"
    assert got["completed_at"] == "2023-11-14T22:13:26.500+00:00"
    assert (got["duration_seconds"], got["model_calls"]) == (6.5, 3)
    assert got["latency_ms"] == {"p50": 200.0, "p90": pytest.approx(280.0), "p99": pytest.approx(298.0)}
    assert got["sample_duration_s"]["p50"] == 2.0
