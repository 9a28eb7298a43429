"""Estimates how long a quickstart takes on this machine, and chooses the recipe that ends in time.

The engine is timed on a fixed workload; the rest is arithmetic. The coefficients were measured with whole
quickstarts on two cores (docs/quickstart.md). The estimate assumes an otherwise idle machine, and can be off
by a third.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Sequence
from typing import NamedTuple

from hermes.core.durations import duration
from hermes.errors import HermesError
from hermes.quickstart.recipe import QuickstartRecipe

LIMIT_S = 480.0
"""A quickstart on a CPU should end within this time."""
_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 8, 128, 8
_IDS = range(20, 240)
"""Token ids that every vocabulary has."""
_PATIENCE_S = 300.0


class Cost(NamedTuple):
    """Seconds of one rollout or row: a constant part, and one that is proportional to the pace."""

    fixed_s: float
    per_pace: float

    def at(self, pace_s: float) -> float:
        return self.fixed_s + self.per_pace * pace_s


_START_S = 25.0
"""Starting the processes of all stages."""
_SAMPLED = Cost(0.07, 0.2)
"""One rollout that is only sampled: evaluation and generation."""
_SFT_ROW = Cost(0.0, 0.59)
_GRPO_ROLLOUT = Cost(0.08, 0.54)


def measure_pace(engine_url: str) -> float:
    """Seconds that the engine takes for 8 prompts of 128 tokens and 8 sampled tokens each."""
    _sample(engine_url, 1, offset=0)  # one-time initialisation is not measured
    began_s = time.perf_counter()
    _sample(engine_url, _PROMPTS, offset=1)
    return time.perf_counter() - began_s


def estimate_s(recipe: QuickstartRecipe, pace_s: float) -> float:
    """How long the whole recipe takes at this pace."""
    sampled = 6 * recipe.eval_tasks + recipe.tasks  # three evaluations, greedy and at temperature 1
    rows = recipe.sft_steps * recipe.sft_batch
    rollouts = recipe.rl_steps * recipe.batch_size
    return (
        _START_S
        + sampled * _SAMPLED.at(pace_s)
        + rows * _SFT_ROW.at(pace_s)
        + rollouts * _GRPO_ROLLOUT.at(pace_s)
    )


def fit(recipes: Sequence[QuickstartRecipe], pace_s: float, limit_s: float = LIMIT_S) -> QuickstartRecipe:
    """The first recipe that ends within the limit, else the last. Recipes are sorted largest first."""
    return next((recipe for recipe in recipes if estimate_s(recipe, pace_s) <= limit_s), recipes[-1])


def announce(recipes: Sequence[QuickstartRecipe], chosen: QuickstartRecipe, pace_s: float) -> str:
    """The message before the first long stage."""
    sizes = [RecipeSize(estimate_s(recipe, pace_s), _size(recipe)) for recipe in (chosen, recipes[0])]
    return announcement(pace_s, *sizes)


class RecipeSize(NamedTuple):
    seconds: float
    """The estimate for this machine."""
    text: str


def announcement(pace_s: float, chosen: RecipeSize, full: RecipeSize) -> str:
    """How long the chosen recipe takes, and what it leaves out of the full one."""
    lines = [f"   about {minutes(chosen.seconds)} in all on this machine, if it has nothing else to do"]
    if chosen != full:
        lines.append(
            f"   it is slow for this ({_PROMPTS * _PROMPT_TOKENS:,} prompt tokens took {pace_s:.1f} s), so "
            f"{chosen.text} instead of {full.text};"
        )
        lines.append(f"   with --full it takes about {minutes(full.seconds)} and learns more")
    return "\n".join(lines)


def _size(recipe: QuickstartRecipe) -> str:
    return (
        f"{recipe.eval_tasks} held-out tasks and {recipe.rl_steps} steps of {recipe.groups} × "
        f"{recipe.group_size} rollouts"
    )


def minutes(seconds: float) -> str:
    """Rounded as an estimate deserves."""
    return duration(seconds) if seconds < 90 else f"{round(seconds / 60)} minutes"


def _sample(engine_url: str, prompts: int, offset: int) -> None:
    """Samples prompts that differ from their first token on, so that none has a cached prefix."""
    ids = [
        [_IDS[(offset + number + 31 * position) % len(_IDS)] for position in range(_PROMPT_TOKENS)]
        for number in range(prompts)
    ]
    params = {"max_new_tokens": _NEW_TOKENS, "temperature": 1.0}
    body = json.dumps({"input_ids": ids, "sampling_params": params}).encode()
    request = urllib.request.Request(
        f"{engine_url}/generate", body, {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
            response.read()
    except OSError as error:
        raise HermesError(f"the engine at {engine_url} does not sample: {error}", "see its log") from error
