"""Measuring a policy on held-out tasks: the environment's own agent loop, against the engine, no examples.

Greedy says what the policy knows, temperature 1 what it does when it samples, as in training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.envs.stats import Interval, interval
from hermes.quickstart.progress import Meter, Tell
from hermes.quickstart.recipe import MODEL, Recipe

if TYPE_CHECKING:
    from hermes.envs.builtin.calculator import CalculatorEnv


@dataclass(frozen=True, slots=True)
class Measured:
    """How a policy does on the held-out tasks."""

    greedy: Interval
    sampled: Interval


def measure(recipe: Recipe, engine_url: str, weights: str, tell: Tell) -> Measured:
    """`weights`: the base model's name, or a tinker:// path of sampler weights."""
    return asyncio.run(_measure(recipe, engine_url, weights, tell))


def open_env(recipe: Recipe, engine_url: str, weights: str = MODEL) -> CalculatorEnv:
    from hermes.envs.builtin.calculator import CalculatorConfig, CalculatorEnv
    from hermes.envs.servers.config import APIServerConfig

    config = CalculatorConfig(
        eval_size=recipe.eval_tasks,
        train_size=recipe.tasks,
        two_step_share=recipe.two_step_share,
        max_token_length=recipe.max_tokens,
        tool_pool_size=recipe.at_once,
        extra_body={"model": weights},
        use_wandb=False,
    )
    server = APIServerConfig(
        base_url=f"{engine_url}/v1",
        model_name=weights,
        server_type="sglang",
        num_max_requests_at_once=recipe.at_once,
        health_check=False,
    )
    return CalculatorEnv(config, [server])


async def _measure(recipe: Recipe, engine_url: str, weights: str, tell: Tell) -> Measured:
    env = open_env(recipe, engine_url, weights)
    try:
        await env.setup()
        items = await env.eval_items()
        greedy = await _successes(env, items, 0.0, Meter("greedy", len(items), tell))
        sampled = await _successes(env, items, 1.0, Meter("sampled", len(items), tell))
    finally:
        await env.close()
    return Measured(interval(greedy), interval(sampled))


async def _successes(
    env: CalculatorEnv, items: Sequence[Any], temperature: float, meter: Meter
) -> list[float]:
    async def one(item: Any) -> float:
        scored = await env.run_item(item, temperature=temperature)
        meter.add()
        return float(scored.reward.success)

    # All of them end before the environment is closed, also when one has failed.
    ended = await asyncio.gather(*map(one, items), return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException):
            raise each
    return [each for each in ended if not isinstance(each, BaseException)]
