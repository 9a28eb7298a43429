"""Evaluating an agent environment: held-out tasks, the whole agent loop, success with its uncertainty.

A rollout without a reward is counted as failed to run, beside the measured ones and never among them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.core.stats import interval
from hermes.envs.agent.rollout import ScoredRollout
from hermes.envs.modes.evaluate import FailedItem, run_items
from hermes.envs.types import Item
from hermes.errors import HermesError

TEMPERATURE = 0.0
"""Evaluations sample greedily."""


@dataclass(frozen=True, slots=True)
class AgentEvaluation:
    """The result of an evaluation, as `evaluate_log` takes it."""

    metrics: dict[str, float]
    samples: list[dict[str, Any]]


async def evaluate(
    items: Sequence[Item],
    run_item: Callable[[Item], Awaitable[ScoredRollout]],
    format_prompt: Callable[[Item], str],
    max_workers: int,
) -> AgentEvaluation:
    """Runs one rollout of each item. A rollout retries itself, so a failed one is not tried again here."""
    results = await run_items(items, run_item, max_workers, max_tries=1)
    rollouts = [result for result in results if isinstance(result, ScoredRollout)]
    samples = [_sample(format_prompt(item), result) for item, result in zip(items, results, strict=True)]
    return AgentEvaluation(summarize(rollouts, len(results) - len(rollouts)), samples)


def summarize(rollouts: Sequence[ScoredRollout], failed: int = 0) -> dict[str, float]:
    """The metrics that an evaluation reports."""
    count = len(rollouts)
    reward = interval([rollout.reward.value for rollout in rollouts])
    success = interval([float(rollout.reward.success) for rollout in rollouts])
    return {
        "eval/mean_reward": reward.mean,
        "eval/mean_reward_low": reward.low,
        "eval/mean_reward_high": reward.high,
        "eval/success_rate": success.mean,
        "eval/success_rate_low": success.low,
        "eval/success_rate_high": success.high,
        "eval/turns": sum(rollout.result.turns_used for rollout in rollouts) / count,
        "eval/samples": count,
        "eval/failed_to_run": failed,
    }


def _sample(prompt: str, result: ScoredRollout | FailedItem) -> dict[str, Any]:
    if isinstance(result, FailedItem):
        error = result.error
        message = error.message if isinstance(error, HermesError) else result.failure.text
        return {"prompt": prompt, "error": message, "score": None}
    return {
        "prompt": prompt,
        "response": result.result.final_response,
        "messages": result.result.messages,
        "score": result.reward.value,
        "correct": result.reward.success,
        "parts": dict(result.reward.parts),
        "detail": result.reward.detail,
        "outcome": result.result.outcome.stop_reason.value,
        "trajectory_id": result.result.trajectory.header.id,
    }
