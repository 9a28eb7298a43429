"""A sweep: the grid, the choice of a run, and a real one with several adapters on one engine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hermes.errors import UsageError
from hermes.rl.run import find_run
from hermes.rl.sweep import SweepRow, best_row, differing, grid, rates_around
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, hermes


def test_the_grid_is_every_combination_with_every_seed() -> None:
    points = grid({"learning_rate": ["1e-4", "1e-3"], "lora_rank": [4]}, seeds=2)
    assert points == [
        {"learning_rate": rate, "lora_rank": 4, "tinker.seed": seed}
        for rate in ("1e-4", "1e-3")
        for seed in (0, 1)
    ]
    assert grid({}) == [{}]
    assert differing(points) == {"learning_rate", "tinker.seed"} and differing(points[:1]) == set()
    with pytest.raises(UsageError, match="100 runs"):
        grid({"a": range(10), "b": range(10)})


def test_rates_are_spread_around_the_default_by_their_logarithms() -> None:
    assert rates_around(2e-4, 5) == [2e-5, 6.3e-5, 2e-4, 6.3e-4, 2e-3]
    assert rates_around(1e-4, 1) == [1e-4]


def row(rate: float, score: float | None, status: str = "completed", **more: object) -> SweepRow:
    edits = {"learning_rate": rate, "tinker.seed": more.pop("seed", 0)}
    return SweepRow(edits, f"{rate}", status, 4, score, True, 0.0, **more)  # type: ignore[arg-type]


def test_the_best_run_is_completed_healthy_and_good_with_every_seed() -> None:
    lucky = [row(1e-3, 0.9), row(1e-3, 0.1, seed=1)]
    steady = [row(1e-4, 0.6), row(1e-4, 0.7, seed=1)]
    too_fast = [row(1e-2, 0.95, causes=("entropy collapse",))]
    failed = [row(1e-1, 0.99, status="failed"), row(1.0, None)]
    chosen = best_row([*lucky, *steady, *too_fast, *failed])
    assert chosen is not None and (chosen.edits["learning_rate"], chosen.score) == (1e-4, 0.7)
    assert best_row(failed) is None
    only = best_row(too_fast)
    assert only is too_fast[0], "better than none"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_trains_several_adapters_on_one_engine(home_with: MakeHome, tmp_path: Path) -> None:
    home = home_with()
    words = ("--set", "learning_rate=0.0001,0.001", "--set", "group_size=4", "--set", "batch_size=8")
    report = answer(home, "rl", "sweep", "--env", "letters", *words, "--steps", "2")
    assert [entry["status"] for entry in report["runs"]] == ["completed", "completed"]
    rates = [entry["edits"]["learning_rate"] for entry in report["runs"]]
    assert rates == ["0.0001", "0.001"] and report["best"]["run_id"] in [
        entry["run_id"] for entry in report["runs"]
    ]
    assert json.loads((Path(report["folder"]) / "sweep.json").read_text()) == report
    engines = []
    for entry in report["runs"]:
        run = find_run(home, entry["run_id"])
        settings = run.config()
        engines.append(settings.run.service)
        assert "engine" not in run.status().processes and entry["steps"] == 2
        assert settings.tinker.learning_rate == float(entry["edits"]["learning_rate"])
        weights = answer(home, "rl", "weights", run.run_id, "--output", str(tmp_path / run.run_id))
        assert (Path(weights["path"]) / "adapter_model.safetensors").is_file(), "the engine has ended"
    assert len(set(engines)) == 1, "one engine for all"
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if str(home) in line], "nothing is left running"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_learning_rate_that_is_chosen_can_be_set_as_the_last_line_says(home_with: MakeHome) -> None:
    home = home_with(learning_rate=0.001)
    words = ("--rates", "2", "--steps", "2", "--set", "group_size=4", "--set", "batch_size=8")
    ended = hermes(home, "rl", "sweep", "--env", "letters", "--find-lr", *words)
    assert ended.returncode == 0, ended.stderr
    table = ended.stdout.partition("RUN ")[2].splitlines()
    assert [line.split()[3] for line in table[1:3]] == ["2", "2"], "steps of both runs"
    rates = {line.partition("learning_rate=")[2].split()[0] for line in table[1:3]}
    command = table[-1].partition("to use it: hermes ")[2].split()
    assert rates == {"0.0001", "0.01"} and command[-1] in rates
    assert hermes(home, *command).returncode == 0
    fields = {row["name"]: row for row in answer(home, "rl", "config")["locked_fields"]}
    assert fields["tinker.learning_rate"]["current_value"] == float(command[-1])


def test_a_sweep_with_a_value_that_is_not_allowed_starts_nothing(home_with: MakeHome) -> None:
    home = home_with()
    refused = hermes(home, "rl", "sweep", "--env", "letters", "--set", "lora_rank=4,0")
    assert refused.returncode == 2 and "lora_rank" in refused.stderr
    assert not (home / "sweeps").exists() and not (home / "runs").exists()
