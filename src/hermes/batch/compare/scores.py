"""Comparing models on the same tasks: scores with confidence intervals, wins and losses. Pure functions.

A task, not a sample, is the unit: several samples of one task are not independent, so they are averaged
first and intervals are over tasks. The interval of a pass rate with one sample a task is Wilson's; any
other is a bootstrap over tasks with a fixed seed. A sample that infrastructure failed or the grader could
not score is left out and counted, never taken as 0.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from hermes.batch.grading.answers import normalise
from hermes.core import JSONObject
from hermes.core.stats import Interval, bootstrap, quantile, wilson

_SAME = 1e-9
_THINKING_OR_CALL = re.compile(r"<think>.*?</think>|<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One finished sample of one model at one task."""

    key: str
    sample: int
    trajectory_id: str
    outcome: str
    answer: str
    reward: float | None
    turns: int
    tokens: int
    cost_usd: float | None
    latencies_ms: tuple[float, ...]
    duration_s: float

    @classmethod
    def from_row(cls, row: JSONObject) -> Attempt:
        """From a line of trajectories.jsonl."""
        return cls(
            key=row["key"],
            sample=row["sample"],
            trajectory_id=row["id"],
            outcome=row["outcome"]["stop_reason"],
            answer=_answer(row["conversations"]),
            reward=row["reward"],
            turns=row["turns"],
            tokens=sum(row["usage"].values()),
            cost_usd=row["cost_usd"],
            latencies_ms=tuple(row["latency_ms"]),
            duration_s=row["duration_s"],
        )


@dataclass(frozen=True, slots=True)
class Contender:
    model: str
    attempts: Sequence[Attempt]
    failed: int
    """Unfinished samples: an infrastructure failure, or not run."""


@dataclass(frozen=True, slots=True)
class Score:
    """One line of the table."""

    model: str
    tasks: int
    """With a score; without a grader, with a finished sample."""
    samples: int
    failed: int
    ungraded: int
    """Finished, but the grader gave no reward."""
    score: float | None
    """Mean over tasks; None without a grader."""
    interval: Interval | None
    outcomes: dict[str, int]
    mean_turns: float | None
    mean_tokens: float | None
    tokens: int
    cost_usd: float | None
    """None if any price is unknown."""
    latency_p50_ms: float | None
    """The median time of a model call."""
    latency_p90_ms: float | None
    duration_p50_s: float | None
    """The median time of a sample."""


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Two models on the tasks that both have a score for."""

    left: str
    right: str
    wins: int
    """Tasks where the left one scored higher."""
    losses: int
    ties: int
    difference: float | None
    """Mean of left − right; None without a common task."""
    interval: Interval | None
    p_value: float
    """Two-sided sign test on wins and losses."""


@dataclass(frozen=True, slots=True)
class TaskLine:
    key: str
    scores: dict[str, float | None]
    """Model → its mean reward at this task."""


@dataclass(frozen=True, slots=True)
class Comparison:
    graded: bool
    binary: bool
    """Every reward is 0 or 1, so that a score is a pass rate."""
    scores: tuple[Score, ...]
    pairs: tuple[ModelPair, ...]
    tasks: tuple[TaskLine, ...]

    def to_json(self) -> JSONObject:
        return asdict(self) | {
            "scores": [_as_json(score) for score in self.scores],
            "pairs": [_as_json(pair) for pair in self.pairs],
        }


class Disagreement(NamedTuple):
    key: str
    left: Attempt
    right: Attempt


def compare_models(contenders: Sequence[Contender], keys: Sequence[str]) -> Comparison:
    """`keys`: the tasks, in the order they are to be listed."""
    rewards = [
        attempt.reward
        for contender in contenders
        for attempt in contender.attempts
        if attempt.reward is not None
    ]
    binary = bool(rewards) and all(reward in (0, 1) for reward in rewards)
    means = {contender.model: task_means(contender.attempts) for contender in contenders}
    pairs = [compare_pair(left, right, means) for left, right in combinations(means, 2)] if rewards else []
    return Comparison(
        graded=bool(rewards),
        binary=binary,
        scores=tuple(summarise(contender, binary=binary, graded=bool(rewards)) for contender in contenders),
        pairs=tuple(pairs),
        tasks=tuple(TaskLine(key, {model: mean.get(key) for model, mean in means.items()}) for key in keys),
    )


def summarise(contender: Contender, *, binary: bool, graded: bool) -> Score:
    attempts = contender.attempts
    means = task_means(attempts)
    costs = [attempt.cost_usd for attempt in attempts if attempt.cost_usd is not None]
    latencies = sorted(latency for attempt in attempts for latency in attempt.latencies_ms)
    durations = sorted(attempt.duration_s for attempt in attempts)
    single = all(count == 1 for count in Counter(attempt.key for attempt in attempts).values())
    return Score(
        model=contender.model,
        tasks=len(means) if graded else len({attempt.key for attempt in attempts}),
        samples=len(attempts),
        failed=contender.failed,
        ungraded=sum(attempt.reward is None for attempt in attempts) if graded else 0,
        score=fmean(means.values()) if means else None,
        interval=mean_interval(list(means.values()), binary=binary and (single or _unanimous(means))),
        outcomes=dict(Counter(attempt.outcome for attempt in attempts).most_common()),
        mean_turns=fmean(attempt.turns for attempt in attempts) if attempts else None,
        mean_tokens=fmean(attempt.tokens for attempt in attempts) if attempts else None,
        tokens=sum(attempt.tokens for attempt in attempts),
        cost_usd=math.fsum(costs) if len(costs) == len(attempts) else None,
        latency_p50_ms=quantile(latencies, 0.5) if latencies else None,
        latency_p90_ms=quantile(latencies, 0.9) if latencies else None,
        duration_p50_s=quantile(durations, 0.5) if durations else None,
    )


def task_means(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Task → mean reward over its scored samples; tasks without one are left out."""
    rewards: dict[str, list[float]] = {}
    for attempt in attempts:
        if attempt.reward is not None:
            rewards.setdefault(attempt.key, []).append(attempt.reward)
    return {key: fmean(values) for key, values in rewards.items()}


def compare_pair(left: str, right: str, means: Mapping[str, Mapping[str, float]]) -> ModelPair:
    """`means`: model → task → mean reward."""
    common = [key for key in means[left] if key in means[right]]
    differences = [means[left][key] - means[right][key] for key in common]
    wins = sum(difference > _SAME for difference in differences)
    losses = sum(difference < -_SAME for difference in differences)
    return ModelPair(
        left=left,
        right=right,
        wins=wins,
        losses=losses,
        ties=len(common) - wins - losses,
        difference=fmean(differences) if differences else None,
        interval=mean_interval(differences, binary=False),
        p_value=sign_test(wins, losses),
    )


def disagreements(left: Sequence[Attempt], right: Sequence[Attempt], *, graded: bool) -> list[Disagreement]:
    """Tasks on which the two differ, with the first sample that differs.

    They differ in reward; without a grader, in the answer or in the outcome.
    """
    right_attempts = {(attempt.key, attempt.sample): attempt for attempt in right}
    by_task: dict[str, Disagreement] = {}
    for attempt in left:
        counterpart = right_attempts.get((attempt.key, attempt.sample))
        if counterpart is not None and attempt.key not in by_task and _differ(attempt, counterpart, graded):
            by_task[attempt.key] = Disagreement(attempt.key, attempt, counterpart)
    return list(by_task.values())


def _unanimous(means: Mapping[str, float]) -> bool:
    """Whether every sample of every task had the same pass or failure: resampling shows no spread then."""
    return set(means.values()) in ({0.0}, {1.0})


def mean_interval(values: Sequence[float], *, binary: bool) -> Interval | None:
    """The confidence interval of the mean; None without values, and where equal values show no spread."""
    if not values:
        return None
    if binary:
        return wilson(sum(value == 1 for value in values), len(values))
    return bootstrap(values) if len(set(values)) > 1 else None


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p-value of the split if both sides were equally likely to win; ties are ignored."""
    trials = wins + losses
    tail = sum(math.comb(trials, count) for count in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / (1 << trials))


def _differ(left: Attempt, right: Attempt, graded: bool) -> bool:
    if not graded:
        return left.outcome != right.outcome or normalise(left.answer) != normalise(right.answer)
    if left.reward is None or right.reward is None:
        return False
    return abs(left.reward - right.reward) > _SAME


def _answer(conversations: Sequence[JSONObject]) -> str:
    """The assistant's last message that has text besides thinking and tool calls."""
    for turn in reversed(conversations):
        text = _THINKING_OR_CALL.sub("", turn["value"]).strip() if turn["from"] == "gpt" else ""
        if text:
            return text
    return ""


def _as_json(item: Score | ModelPair) -> JSONObject:
    data: JSONObject = {field.name: getattr(item, field.name) for field in fields(item)}
    interval: Interval | None = item.interval
    bounds = interval and {"low": interval.low, "high": interval.high, "method": interval.method}
    return data | {"interval": bounds}
