"""The reward that a task's tests wrote: reward.json, else reward.txt. Pure.

A reward that is missing or no finite number is a `GraderError`: an error of the task, never a score of 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Literal

from hermes.envs.rewards.result import GraderError, RewardResult

REWARD_JSON = "reward.json"
REWARD_TEXT = "reward.txt"
MOST_REWARD_BYTES = 64 << 10
_MAIN = "reward"
_GREATEST = sys.float_info.max


def read_reward(json_text: str | None, text: str | None) -> RewardResult:
    """The reward of one verification; the texts of the two files, None where there is none.

    An object's `reward` is its value; without that key it is the mean of its numbers.
    """
    if json_text is not None:
        try:
            value = json.loads(json_text)
        except (ValueError, RecursionError) as error:
            raise GraderError(f"{REWARD_JSON} is no JSON: {json_text.strip()[:100]!r}") from error
        if not isinstance(value, dict):
            return RewardResult(_number(value, REWARD_JSON))
        parts = {str(name): _number(number, f"{REWARD_JSON}, {name}") for name, number in value.items()}
        if not parts:
            raise GraderError(f"{REWARD_JSON} has no number.")
        mean = sum(value / len(parts) for value in parts.values())
        return RewardResult(parts.get(_MAIN, mean), parts)
    if text is None:
        raise GraderError(f"the tests wrote neither {REWARD_JSON} nor {REWARD_TEXT}.")
    try:
        return RewardResult(_number(float(text.strip()), REWARD_TEXT))
    except ValueError as error:
        raise GraderError(f"{REWARD_TEXT} holds no number: {text.strip()[:100]!r}") from error


def _number(value: object, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _GREATEST:
        return float(value)
    raise GraderError(f"{where}: {str(value)[:60]!r} is no finite number.")


def reaches(reward: RewardResult, least: Mapping[str, float]) -> bool:
    """Whether the next step may run: every stated least reward is reached."""
    values = {_MAIN: reward.value, **reward.parts}
    missing = least.keys() - values.keys()
    if missing:
        raise GraderError(f"min_reward names what the tests did not write: {', '.join(sorted(missing))}")
    return all(values[name] >= number for name, number in least.items())


def combine(rewards: Sequence[RewardResult], steps: int, strategy: Literal["mean", "final"]) -> RewardResult:
    """The reward of a task of `steps` steps; those that did not run, after one below its least, count 0."""
    if steps == 1:
        return rewards[0]
    values = [reward.value for reward in rewards] + [0.0] * (steps - len(rewards))
    value = values[-1] if strategy == "final" else sum(values) / steps
    parts = {f"step_{number + 1}": reward for number, reward in enumerate(values)}
    details = "; ".join(reward.detail for reward in rewards if reward.detail)
    return RewardResult(value, parts, details)
