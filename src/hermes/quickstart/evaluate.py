"""Measuring a policy on held-out tasks: the environment's own agent loop, against the engine, no examples.

Greedy says what the policy knows, temperature 1 what it does when it samples, as in training.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.envs.stats import Interval, interval
from hermes.quickstart.progress import StageMeter, Tell
from hermes.quickstart.recipe import MODEL, QuickstartRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hermes.envs.builtin.calculator import CalculatorEnv
    from hermes.envs.servers.config import APIServerConfig


@dataclass(frozen=True, slots=True)
class Measured:
    """How a policy does on the held-out tasks."""

    greedy: Interval
    sampled: Interval


def measure(recipe: QuickstartRecipe, engine_url: str, weights: str, tell: Tell) -> Measured:
    """`weights`: the base model's name, or a tinker:// path of sampler weights."""
    return asyncio.run(_measure(recipe, engine_url, weights, tell))


@functools.cache
def tokenizer() -> PreTrainedTokenizerBase:
    """The model's, loaded once; the first time takes seconds."""
    from hermes.envs.tokenise import load_tokenizer

    return load_tokenizer(MODEL)


def open_env(recipe: QuickstartRecipe, engine_url: str, weights: str = MODEL) -> CalculatorEnv:
    from hermes.envs.builtin.calculator import CalculatorConfig, CalculatorEnv

    config = CalculatorConfig(
        eval_size=recipe.eval_tasks,
        train_size=recipe.tasks,
        two_step_share=recipe.two_step_share,
        max_token_length=recipe.max_tokens,
        tool_pool_size=recipe.at_once,
        extra_body={"model": weights},
        use_wandb=False,
    )
    return CalculatorEnv(config, [on_engine(engine_url, weights, recipe.at_once)])


def on_engine(engine_url: str, weights: str, at_once: int) -> APIServerConfig:
    """Where an environment samples these weights, token by token."""
    from hermes.envs.servers.config import APIServerConfig

    return APIServerConfig(
        base_url=f"{engine_url}/v1",
        model_name=weights,
        server_type="sglang",
        num_max_requests_at_once=at_once,
        health_check=False,
    )


async def _measure(recipe: QuickstartRecipe, engine_url: str, weights: str, tell: Tell) -> Measured:
    env = open_env(recipe, engine_url, weights)
    env.tokenizer = tokenizer()
    try:
        await env.setup()
        items = await env.eval_items()
        tries = [(item, temperature) for temperature in (0.0, 1.0) for item in items]
        found = await _successes(env, tries, StageMeter("rollouts, greedy and sampled", len(tries), tell))
    finally:
        await env.close()
    return Measured(interval(found[: len(items)]), interval(found[len(items) :]))


async def _successes(
    env: CalculatorEnv, tries: Sequence[tuple[Any, float]], meter: StageMeter
) -> list[float]:
    """1 or 0 for each item at its temperature; all at once, because a larger batch is cheaper."""

    async def one(item: Any, temperature: float) -> float:
        scored = await env.run_item(item, temperature=temperature)
        meter.add()
        return float(scored.reward.success)

    # All of them end before the environment is closed, also when one has failed.
    ended = await asyncio.gather(*(one(*each) for each in tries), return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException):
            raise each
    return [each for each in ended if not isinstance(each, BaseException)]
