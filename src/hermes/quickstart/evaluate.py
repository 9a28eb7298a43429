"""Evaluates a policy on held-out tasks: the environment's agent loop, at the engine, greedy, no examples."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

from hermes.core.stats import Interval, interval
from hermes.quickstart.act import MODEL
from hermes.quickstart.recipe import QuickstartRecipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hermes.envs.builtin.calculator import CalculatorEnv
    from hermes.envs.servers.config import APIServerConfig


def evaluate(recipe: QuickstartRecipe, engine_url: str, weights: str, run_id: str) -> Interval:
    """The success rate. `weights`: the base model's name, or a tinker:// path of sampler weights; `run_id`:
    what the trajectories are listed under."""
    return asyncio.run(_evaluate(recipe, engine_url, weights, run_id))


@functools.cache
def tokenizer() -> PreTrainedTokenizerBase:
    """The model's tokenizer, loaded once; the first call takes seconds."""
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
    return CalculatorEnv(config, [server_config(engine_url, weights, recipe.at_once)])


def server_config(engine_url: str, weights: str, at_once: int) -> APIServerConfig:
    """The settings with which an environment samples these weights from the engine."""
    from hermes.envs.servers.config import APIServerConfig

    return APIServerConfig(
        base_url=f"{engine_url}/v1",
        model_name=weights,
        server_type="sglang",
        num_max_requests_at_once=at_once,
        health_check=False,
    )


async def _evaluate(recipe: QuickstartRecipe, engine_url: str, weights: str, run_id: str) -> Interval:
    env = open_env(recipe, engine_url, weights)
    env.run_id = run_id
    env.tokenizer = tokenizer()
    try:
        await env.setup()
        items = await env.eval_items()
        # All of them finish before the environment is closed, even if one has failed.
        rollouts = (env.run_item(item, temperature=0.0) for item in items)
        outcomes = await asyncio.gather(*rollouts, return_exceptions=True)
    finally:
        await env.close()
    successes = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        successes.append(float(outcome.reward.success))
    return interval(successes)
