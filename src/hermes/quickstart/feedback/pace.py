"""Estimates how long the feedback act takes on this machine, and chooses the recipe that ends in time.

The engine is timed as for the first act. The coefficients were measured with whole acts on two cores
(docs/feedback.md); the estimate assumes an otherwise idle machine, and can be off by a third.
"""

from __future__ import annotations

from collections.abc import Sequence

from hermes.quickstart.feedback.recipe import FeedbackRecipe
from hermes.quickstart.pace import LIMIT_S, Cost, RecipeSize, announcement

_START_S = 75.0
"""Starting the processes of all stages."""
_ANSWER = Cost(0.1, 0.045)
"""One answer that is only sampled."""
_QUESTION = Cost(0.3, 0.12)
"""The answers to one question under the reference of DPO."""
_DPO_PAIR = Cost(0.0, 0.25)
"""One pair in one step."""
_REWARD_PAIR = Cost(0.0, 0.42)
_RLHF_ANSWER = Cost(0.1, 0.4)
"""One answer that is sampled, scored and trained on."""


def estimate_s(recipe: FeedbackRecipe, pace_s: float) -> float:
    """How long the whole recipe takes at this pace."""
    answers = 3 * recipe.held_out + 2 * recipe.samples * recipe.questions
    return (
        _START_S
        + answers * _ANSWER.at(pace_s)
        + recipe.questions * _QUESTION.at(pace_s)
        + recipe.dpo_steps * recipe.batch * _DPO_PAIR.at(pace_s)
        + recipe.reward_steps * recipe.batch * _REWARD_PAIR.at(pace_s)
        + recipe.rl_steps * recipe.rl_batch * _RLHF_ANSWER.at(pace_s)
    )


def fit(recipes: Sequence[FeedbackRecipe], pace_s: float, limit_s: float = LIMIT_S) -> FeedbackRecipe:
    """The first recipe that ends within the limit, else the last. Recipes are sorted largest first."""
    return next((recipe for recipe in recipes if estimate_s(recipe, pace_s) <= limit_s), recipes[-1])


def announce(recipes: Sequence[FeedbackRecipe], chosen: FeedbackRecipe, pace_s: float) -> str:
    """The message before the first long stage."""
    sizes = [RecipeSize(estimate_s(recipe, pace_s), _size(recipe)) for recipe in (chosen, recipes[0])]
    return announcement(pace_s, *sizes)


def _size(recipe: FeedbackRecipe) -> str:
    return (
        f"{recipe.dpo_steps} steps of DPO, {recipe.reward_steps} of the reward model and {recipe.rl_steps} of"
        f" RLHF"
    )
