"""Signals put together: weights, clamping, gates, tool use, efficiency."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.envs.rewards.combine import ToolUse, Weighted, combine, efficiency, gated, tool_usage
from hermes.envs.rewards.result import GraderError, RewardResult, failed, passed


def test_the_weighted_sum_keeps_its_parts_and_is_exactly_one_when_all_is_well() -> None:
    signals = {"a": Weighted(passed(), 0.6), "b": Weighted(passed(), 0.2), "c": Weighted(passed(), 0.2)}
    result = combine(signals)
    assert result.value == 1.0
    assert result.parts == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_bonuses_and_penalties_are_clamped() -> None:
    assert combine({"a": Weighted(passed(), 1.0), "bonus": Weighted(passed(), 0.3)}).value == 1.0
    assert combine({"a": Weighted(failed("x"), 1.0), "penalty": Weighted(passed(), -0.3)}).value == 0.0
    assert combine({"penalty": Weighted(passed(), -0.3)}, low=-1.0).value == -0.3


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=1, max_size=6))
def test_no_signals_leave_the_range(pairs: list[tuple[float, float]]) -> None:
    signals = {str(i): Weighted(RewardResult(value), weight) for i, (value, weight) in enumerate(pairs)}
    assert 0.0 <= combine(signals).value <= 1.0


def test_a_weight_that_is_no_number_is_the_graders_failure() -> None:
    with pytest.raises(GraderError, match="finite"):
        combine({"a": Weighted(passed(), float("nan"))})
    with pytest.raises(GraderError, match="nothing to combine"):
        combine({})


def test_a_closed_gate_leaves_nothing_but_the_parts() -> None:
    result = gated(failed("wrong"), RewardResult(0.4, {"efficiency": 1.0}))
    assert (result.value, result.parts, result.detail) == (0.0, {"efficiency": 1.0}, "wrong")


def test_tools_count_once_and_only_if_they_did_what_was_asked() -> None:
    wanted = ("search", "read")
    assert tool_usage([ToolUse("search", True), ToolUse("read", True)], wanted).value == 1.0
    assert tool_usage([ToolUse("search", True)] * 100, wanted).value == 0.5
    assert tool_usage([ToolUse("search", False), ToolUse("other", True)], wanted).value == 0.0
    assert tool_usage([], wanted).value == 0.0
    with pytest.raises(GraderError):
        tool_usage([], ())


@pytest.mark.parametrize(("turns", "value"), [(0, 1.0), (3, 1.0), (5, 0.5), (7, 0.0), (70, 0.0)])
def test_efficiency_falls_from_the_free_turns_to_the_limit(turns: int, value: float) -> None:
    assert efficiency(turns, free=3, limit=7).value == value
