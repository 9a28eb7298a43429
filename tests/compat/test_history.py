"""Episodes that are too long: which turns are dropped, and which steps are lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes.compat.atropos.helpers import ensure_trajectory_token_limit, truncate_thinking
from hermes.envs.tokenise import tokenize_for_trainer
from tests.envs.templates import bundled_tokenizer


def step(tokenizer: Any, observation_role: str) -> dict[str, Any]:
    """A game after two turns, whose observations are long."""
    messages = [
        {"role": "system", "content": "You play."},
        {"role": observation_role, "content": "first card " * 30},
        {"role": "assistant", "content": "hit"},
        {"role": observation_role, "content": "second card " * 30},
        {"role": "assistant", "content": "stick"},
    ]
    encoded = tokenize_for_trainer(tokenizer, messages)
    return {
        "messages": [messages],
        "tokens": [encoded["tokens"]],
        "masks": [encoded["masks"]],
        "scores": [1.0],
        "seed": 1,
        "parsed_actions": ["stick"],
    }


def contents(steps: list[dict[str, Any]]) -> list[list[str]]:
    return [[message["content"][:6] for message in kept["messages"][0]] for kept in steps]


def test_a_long_step_with_observations_of_the_user_stays_without_them(bundled_home: Path) -> None:
    tokenizer = bundled_tokenizer(bundled_home)
    long = step(tokenizer, "user")
    (shortened,) = ensure_trajectory_token_limit([long], tokenizer, 40)
    assert contents([shortened]) == [["You pl", "stick"]]
    assert shortened["tokens"] == [tokenize_for_trainer(tokenizer, shortened["messages"][0])["tokens"]]
    assert len(shortened["tokens"][0]) <= 40


def test_a_long_step_keeps_the_last_observation_of_the_environment(bundled_home: Path) -> None:
    tokenizer = bundled_tokenizer(bundled_home)
    long = step(tokenizer, "environment")
    assert ensure_trajectory_token_limit([long], tokenizer, 40) == []
    (shortened,) = ensure_trajectory_token_limit([long], tokenizer, len(long["tokens"][0]) - 1)
    assert contents([shortened]) == [["You pl", "second", "stick"]]


def test_an_end_of_thinking_before_its_beginning_is_left_alone(bundled_home: Path) -> None:
    tokenizer = bundled_tokenizer(bundled_home)
    text = "a</think><think>one two three four five six</think>b"
    assert truncate_thinking(text, tokenizer, 2) == text
    assert truncate_thinking(text[9:], tokenizer, 2) == "<think>\n... five six\n</think>b"
