"""Evaluates a policy on held-out tasks: the environment's agent loop, at the engine, without examples.

Every task is tried greedily and at temperature 1, as in training.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes.core.stats import Interval, interval
from hermes.quickstart.act import MODEL
from hermes.quickstart.progress import StageMeter
from hermes.quickstart.recipe import QuickstartRecipe
from hermes.training.session import ProgressCallback

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hermes.envs.builtin.calculator import CalculatorEnv
    from hermes.envs.servers.config import APIServerConfig


@dataclass(frozen=True, slots=True)
class PolicyEvaluation:
    """The success rates of a policy on the held-out tasks."""

    greedy: Interval
    sampled: Interval


def evaluate(
    recipe: QuickstartRecipe, engine_url: str, weights: str, progress: ProgressCallback
) -> PolicyEvaluation:
    """`weights`: the base model's name, or a tinker:// path of sampler weights."""
    return asyncio.run(_evaluate(recipe, engine_url, weights, progress))


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


async def _evaluate(
    recipe: QuickstartRecipe, engine_url: str, weights: str, progress: ProgressCallback
) -> PolicyEvaluation:
    env = open_env(recipe, engine_url, weights)
    env.tokenizer = tokenizer()
    try:
        await env.setup()
        items = await env.eval_items()
        tries = [(item, temperature) for temperature in (0.0, 1.0) for item in items]
        meter = StageMeter("rollouts, greedy and sampled", len(tries), progress)
        successes = await _successes(env, tries, meter)
    finally:
        await env.close()
    return PolicyEvaluation(interval(successes[: len(items)]), interval(successes[len(items) :]))


async def _successes(
    env: CalculatorEnv, tries: Sequence[tuple[Any, float]], meter: StageMeter
) -> list[float]:
    """1 or 0 for each item at its temperature; all concurrently, because a larger batch is cheaper."""

    async def run_item(item: Any, temperature: float) -> float:
        scored = await env.run_item(item, temperature=temperature)
        meter.add()
        return float(scored.reward.success)

    # All of them finish before the environment is closed, even if one has failed.
    outcomes = await asyncio.gather(*(run_item(*attempt) for attempt in tries), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
