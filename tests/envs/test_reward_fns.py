"""Reward functions by name, and what they do with hostile answers."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.compat.atropos.reward_fns import (
    CombinedReward,
    RewardError,
    RewardFunction,
    RewardRegistry,
    registry,
)
from hermes.envs.failures import classify
from hermes.errors import UsageError


def scores(
    name: str, *completions: Any, weight: float = 1.0, options: Any = None, **context: Any
) -> list[float]:
    return registry.create(name, weight=weight, **(options or {}))(list(completions), **context)


def test_accuracy_is_by_value_and_not_fooled_by_a_list_of_guesses() -> None:
    right = ["The answer is \\boxed{42}", "#### 42.0", "<think>\\boxed{7}</think> \\boxed{42}", "42"]
    assert scores("accuracy", *right, solution="#### 42") == [1.0] * 4
    guesses = " ".join(f"\\boxed{{{number}}}" for number in range(36, 43))
    assert scores("accuracy", guesses, "\\boxed{41}", "", "no idea", solution="42") == [0.0] * 4
    assert scores("accuracy", "\\boxed{\\frac{1}{2}}", solution="0.5") == [1.0]
    assert scores("accuracy", "1", "2", solution=["1", "1"], weight=2.0) == [2.0, 0.0]


def test_form_alone_is_worth_nothing_where_it_is_only_a_bonus() -> None:
    good, wrong, bare = "<think>hm</think> 4", "<think>hm</think> 5", "4"
    assert scores("r1", good, wrong, bare, solution="4") == [1.5, 0.5, 1.0]
    assert scores("r1", "<think></think><think>a</think> 4", solution="4") == [1.0], "thinks twice"


def test_tags_must_be_opened_and_closed() -> None:
    texts = ("<think>a</think><answer>b</answer>", "<answer>b</answer>", "<answer>", "")
    assert scores("format", *texts) == [1.0, 1.0, 0.0, 0.0]
    assert scores("format", *texts, options={"require_all_tags": True}) == [1.0, 0.0, 0.0, 0.0]
    assert scores("format", "<a.b>x</a.b>", "<aXb>x</aXb>", options={"preferred_tags": ["a.b"]}) == [1.0, 0.0]


@registry.register
class BrokenReward(RewardFunction):
    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        return [{"nan": float("nan"), "text": "good"}.get(one, 1.0) for one in completions]  # type: ignore[misc]


@pytest.mark.parametrize("completion", ["nan", "text"])
def test_a_reward_that_is_no_number_is_a_failure_of_the_grader_and_not_0(completion: str) -> None:
    with pytest.raises(RewardError) as caught:
        scores("broken", completion)
    failure = classify(caught.value)
    assert (failure.reason, failure.infrastructure, failure.fatal) == ("grader", False, False)


def test_a_missing_solution_is_a_failure_of_the_grader() -> None:
    for name in ("accuracy", "r1"):
        with pytest.raises(RewardError, match="no solution"):
            scores(name, "4")
    with pytest.raises(RewardError, match="2 solutions were given for 1"):
        scores("accuracy", "4", solution=["1", "2"])


def test_rewards_are_combined_with_their_weights() -> None:
    parts: list[Any] = [{"type": "format", "weight": 2.0}, {"type": "accuracy", "params": {"tolerance": 0.5}}]
    good, bad = "<answer>4</answer> #### 4.2", "#### 9"
    assert CombinedReward(parts)([good, bad], solution="4") == [3.0, 0.0]
    assert CombinedReward(parts, normalization="sum")([good, bad], solution="4") == [1.0, 0.0]
    assert CombinedReward(parts, normalization="minmax", weight=5)([good, bad], solution="4") == [5.0, 0.0]
    with pytest.raises(UsageError, match="normalization is 'max'"):
        CombinedReward(parts, normalization="max")
    with pytest.raises(RewardError):
        CombinedReward(["broken"])(["nan"])


def test_names_functions_and_configs_are_registered_as_before() -> None:
    own = RewardRegistry()

    @own.register(name="custom")
    class Anything(RewardFunction):
        def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
            return [1.0] * len(completions)

    own.register_function("one", lambda completions, **kwargs: 0.25)
    assert own.create("custom")(["a"]) == [1.0]
    assert own.create({"type": "one", "weight": 4})(["a", "b"]) == [1.0, 1.0]
    with pytest.raises(TypeError):
        own.register(int)
    with pytest.raises(UsageError, match="no reward function 'nothing_like_it'"):
        own.create("nothing_like_it")


def test_completions_come_in_every_form() -> None:
    said = {"role": "assistant", "content": "4"}
    forms = [
        "4",
        said,
        {"message": said},
        [{"role": "user", "content": "?"}, said],
        {"role": "user", "content": "4"},
    ]
    assert [RewardFunction.get_content(form) for form in forms] == ["4", "4", "4", "4", ""]
