"""Two runs with one seed are the same run, whatever the order in which their groups arrive."""

from __future__ import annotations

import pytest

from hermes.rl.results import step_rows
from hermes.rl.run import RlRun
from tests.rl.conftest import MakeHome
from tests.rl.world import how_it_ended, start_run

EXACT = ("reward/mean", "reward/std", "reward/max", "data/trained_tokens", "health/staleness_max")
CLOSE = ("logprobs/mean_training", "optim/grad_norm", "train/loss")
"""Sampler and trainer round differently with every composition of a batch, on the order of 1e-6."""


def curve(run: RlRun, names: tuple[str, ...]) -> list[list[float]]:
    return [[row[name] for name in names] for row in step_rows(run)]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_runs_with_one_seed_give_the_same_curve(home_with: MakeHome) -> None:
    home = home_with(total_steps=6)
    edits = ("reward_jitter_s=0.3", "batch_size=16")
    runs = [start_run(home, *edits, f"seed={seed}") for seed in (7, 7, 8)]  # all three at once
    for run in runs:
        assert how_it_ended(run) == "completed: None"
    first, second, other = runs
    assert curve(first, EXACT) == curve(second, EXACT)
    for row, same_row in zip(curve(first, CLOSE), curve(second, CLOSE), strict=True):
        assert row == pytest.approx(same_row, rel=1e-3, abs=1e-4)
    assert curve(first, EXACT) != curve(other, EXACT)
    assert all(row["health/staleness_max"] == 0 for row in step_rows(first)), "every rollout is on-policy"
    assert first.config().env.get("synchronous") is True, "the recipe of a run on a CPU"
