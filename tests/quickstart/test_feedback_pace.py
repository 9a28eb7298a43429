"""How long the second part of the quickstart will take, and which recipe a machine gets."""

from __future__ import annotations

import pytest

from hermes.quickstart.feedback import pace
from hermes.quickstart.feedback.recipe import CPU, SHORT, choose

RECIPES = choose(fast=False, cuda=False)


def test_a_gpu_and_a_test_have_one_recipe_and_a_cpu_takes_its_pace() -> None:
    (fast,), (cuda,), (full,) = (
        choose(fast=True, cuda=True),
        choose(fast=False, cuda=True),
        choose(fast=False, cuda=False, full=True),
    )
    assert fast.questions < full.questions < cuda.questions
    assert RECIPES == (CPU, SHORT) and full is CPU


@pytest.mark.parametrize(("pace_s", "recipe"), [(0.5, CPU), (60.0, SHORT)])
def test_a_slower_machine_gets_a_smaller_recipe(pace_s: float, recipe: object) -> None:
    assert pace.fit(RECIPES, pace_s) is recipe


def test_a_smaller_recipe_takes_less_time_at_every_pace() -> None:
    for pace_s in (0.1, 1.0, 10.0):
        times = [pace.estimate_s(recipe, pace_s) for recipe in RECIPES]
        assert times == sorted(times, reverse=True) and times[0] > 0


def test_the_announcement_says_how_long_it_takes_and_what_is_left_out() -> None:
    assert pace.announce(RECIPES, CPU, 0.5).count("\n") == 0
    slow = pace.announce(RECIPES, SHORT, 4.5)
    assert f"{SHORT.dpo_steps} steps of DPO" in slow and f"instead of {CPU.dpo_steps} steps" in slow
    assert "with --full it takes about" in slow
