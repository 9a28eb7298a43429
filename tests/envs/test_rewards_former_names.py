"""Environments written for the former keyword names of the graders still run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hermes.envs.rewards.combine import ToolUse, tool_usage
from hermes.envs.rewards.judge import Question, heuristic
from hermes.envs.rewards.number import numeric
from hermes.envs.rewards.schema import matches_schema, read_json
from hermes.envs.rewards.text import exact_match, matches_regex, mentions, word_limit

CALLS: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
    (exact_match, {"answer": "Paris"}, {"expected": "paris"}),
    (mentions, {"answer": "It is Paris"}, {"expected": "paris"}),
    (matches_regex, {"answer": "a1"}, {"pattern": "[a-z][0-9]"}),
    (word_limit, {"answer": "one two"}, {"limit": 3}),
    (numeric, {"answer": "42"}, {"expected": "42"}),
    (matches_schema, {"answer": "{}"}, {"schema": {"type": "object"}}),
    (read_json, {"answer": "{}"}, {}),
    (heuristic, {"answer": "a note"}, {"question": Question("write a note", "a note")}),
    (tool_usage, {"wanted": ["calculator"]}, {"uses": [ToolUse("calculator", ok=True)]}),
]
NEW_NAMES = {"answer": "response", "wanted": "required"}


@pytest.mark.parametrize(("grader", "former", "rest"), CALLS, ids=[grader.__name__ for grader, *_ in CALLS])
def test_a_former_keyword_means_the_same(
    grader: Callable[..., Any], former: dict[str, Any], rest: dict[str, Any]
) -> None:
    new = {NEW_NAMES[name]: value for name, value in former.items()}
    assert grader(**former, **rest) == grader(**new, **rest)
    with pytest.raises(TypeError, match="and its former name"):
        grader(**former, **new, **rest)
