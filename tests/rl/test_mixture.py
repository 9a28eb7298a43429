"""Several environments in one run: their shares of each batch, and a real run with two of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hermes.errors import UsageError
from hermes.rl.config.mixture import WeightedName, group_shares, parse_weighted
from hermes.rl.results import step_rows
from hermes.rl.run import find_run, last_step
from tests.cli.process import failure
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, hermes, how_it_ended
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("weights", "groups", "shares"),
    [
        ([2, 1], 3, [2, 1]),
        ([2, 1], 4, [3, 1]),
        ([1, 1, 1], 4, [2, 1, 1]),
        ([100, 1], 4, [3, 1]),
        ([1, 100, 1], 8, [1, 6, 1]),
        ([0.5, 0.25], 6, [4, 2]),
    ],
)
def test_weights_become_whole_groups_of_each_batch(
    weights: list[float], groups: int, shares: list[int]
) -> None:
    assert group_shares(weights, groups) == shares and sum(shares) == groups


def test_a_weight_follows_the_name() -> None:
    assert parse_weighted("letters") == WeightedName("letters", 1.0)
    assert parse_weighted("my/env.py:2.5") == WeightedName("my/env.py", 2.5)
    for wrong in ("letters:", "letters:x", "letters:0", "letters:-1", "letters:inf", "letters:nan"):
        with pytest.raises(UsageError, match="weight"):
            parse_weighted(wrong)


def test_what_cannot_be_mixed_is_refused_before_anything_starts(home_with: MakeHome) -> None:
    home = home_with()
    both = ("--env", "letters:2", "--env", "vowels")
    small = hermes(home, "rl", "start", *both, "--set", "group_size=4", "--set", "batch_size=4")
    assert "fewer than the 2 environments" in failure(small, 2)[0]
    twice = hermes(home, "rl", "start", "--env", "letters", "--env", "letters")
    assert "named twice" in failure(twice, 2)[0]
    unknown = hermes(home, "rl", "start", *both, "--set", "nonsense=1")
    assert "there is no field 'nonsense'" in failure(unknown, 2)[0]
    assert not (home / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_on_two_environments_keeps_their_shares_and_restarts_either(home_with: MakeHome) -> None:
    home = home_with(total_steps=5)
    edits = ("group_size=2", "batch_size=12", "bonus=0.25", "reward_delay_s=0.2")
    words = [word for edit in edits for word in ("--set", edit)]
    started = answer(home, "rl", "start", "--env", "letters:2", "--env", "vowels:1", *words)
    run = find_run(home, started["run_id"])
    other = wait_until(lambda: run.status().processes["env-vowels"].process_id)
    wait_until(lambda: last_step(run) >= 1)
    os.killpg(other.pid, signal.SIGKILL)
    assert how_it_ended(run) == "completed: None"
    status = run.status()
    assert status.processes["env-vowels"].starts == 2 and status.processes["env"].starts == 1
    rows = step_rows(run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    for row in rows:
        assert row["env/letters/rollouts"] == 8 and row["env/vowels/rollouts"] == 4
        mean = (8 * row["env/letters/reward"] + 4 * row["env/vowels/reward"]) / 12
        assert row["reward/mean"] == pytest.approx(mean)
        assert row["env/vowels/reward"] >= 0.25, "its own field, which the other does not have"
    shown = answer(home, "rl", "results", run.run_id)
    assert shown["environment"] == "letters:2 + vowels:1"
    assert "env/letters/reward" in shown["history"][-1]
    logs = Path(answer(home, "rl", "status", run.run_id)["logs"]["env-vowels"])
    assert logs.stat().st_size > 0
