"""Evaluating an agent environment: held-out tasks, the whole agent loop, success with its uncertainty.

A rollout without a reward counts as failed to run, beside the measure and never in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes.batch.reward import GraderError
from hermes.envs.agent.rollout import Scored
from hermes.envs.failures import GroupDroppedError
from hermes.envs.stats import interval
from hermes.errors import ConfigError, HermesError, ProviderError, SandboxError

if TYPE_CHECKING:
    from hermes.envs.agent.env import HermesAgentBaseEnv


async def evaluate(env: HermesAgentBaseEnv, temperature: float = 0.0) -> dict[str, float]:
    """Measures on `env.eval_items()` and logs it; the metrics."""
    items = list(await env.eval_items())
    if not items:
        raise ConfigError(
            f"{env.display_name} has nothing to evaluate on.",
            "Give it an eval_items method, or an evaluate method of its own.",
        )
    started_s = time.time()
    workers = asyncio.Semaphore(max(1, env.config.max_eval_workers))

    async def one(item: Any) -> Scored | HermesError:
        async with workers:
            try:
                return await env.run_item(item, temperature=temperature)
            except (GraderError, GroupDroppedError, ProviderError, SandboxError) as error:
                return error

    ended = await asyncio.gather(*map(one, items))
    failures = [each for each in ended if isinstance(each, HermesError)]
    if len(failures) == len(ended):
        raise failures[0]
    metrics = metrics_of([each for each in ended if isinstance(each, Scored)], len(failures))
    await env.evaluate_log(
        metrics=metrics,
        samples=[_sample(env, item, each) for item, each in zip(items, ended, strict=True)],
        start_time=started_s,
        end_time=time.time(),
        generation_parameters={"temperature": temperature},
    )
    return metrics


def metrics_of(scored: Sequence[Scored], failed: int = 0) -> dict[str, float]:
    """What an evaluation reports."""
    count = len(scored)
    reward = interval([each.reward.value for each in scored])
    success = interval([float(each.reward.success) for each in scored])
    return {
        "eval/mean_reward": reward.mean,
        "eval/mean_reward_low": reward.low,
        "eval/mean_reward_high": reward.high,
        "eval/success_rate": success.mean,
        "eval/success_rate_low": success.low,
        "eval/success_rate_high": success.high,
        "eval/turns": sum(each.result.turns_used for each in scored) / count,
        "eval/samples": count,
        "eval/failed_to_run": failed,
    }


def _sample(env: HermesAgentBaseEnv, item: Any, ended: Scored | HermesError) -> dict[str, Any]:
    prompt = env.format_prompt(item)
    if isinstance(ended, HermesError):
        return {"prompt": prompt, "error": ended.message, "score": None}
    return {
        "prompt": prompt,
        "response": ended.result.final_response,
        "messages": ended.result.messages,
        "score": ended.reward.value,
        "correct": ended.reward.success,
        "parts": dict(ended.reward.parts),
        "detail": ended.reward.detail,
        "outcome": ended.result.outcome.stop_reason.value,
        "trajectory_id": ended.result.trajectory.header.id,
    }
