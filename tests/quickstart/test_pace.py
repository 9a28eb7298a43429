"""How long a quickstart will take, and which recipe a machine gets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hermes.errors import HermesError
from hermes.quickstart import pace
from hermes.quickstart.feedback import recipe as feedback
from hermes.quickstart.recipe import CPU, FAST
from tests.engine.http.engine_process import launch
from tests.ports import free_port
from tests.rl.world import tiny_model

FEEDBACK = (feedback.CUDA, feedback.CPU, feedback.FAST)


@pytest.mark.parametrize("recipes", [(CPU, FAST), FEEDBACK])
def test_a_smaller_recipe_takes_less_time_at_every_pace(recipes: Sequence[pace.PacedRecipe]) -> None:
    for pace_s in (0.1, 1.0, 10.0):
        times = [recipe.estimate_s(pace_s) for recipe in recipes]
        assert times == sorted(times, reverse=True) and times[-1] > 0


def test_the_announcement_says_how_long_it_takes_and_what_it_does() -> None:
    line = pace.announce(CPU, 1.1)
    assert f"about {pace.minutes(CPU.estimate_s(1.1))} in all on this machine" in line
    assert line.endswith(CPU.size)


@pytest.mark.slow
def test_the_pace_of_a_real_engine_is_measured(tmp_path: Path) -> None:
    engine = launch(tiny_model(tmp_path / "model"), tmp_path / "state")
    try:
        assert 0 < pace.measure_pace(engine.url) < 100
        assert engine.metric("prompt_tokens_total") == 16 * 128
        assert engine.metric("cached_tokens_total") == 0, "nothing is timed that was computed before"
    finally:
        engine.kill()


def test_an_engine_that_is_gone_is_named() -> None:
    with pytest.raises(HermesError, match="does not sample"):
        pace.measure_pace(f"http://127.0.0.1:{free_port()}")
