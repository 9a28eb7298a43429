"""Which checkpoint of a run is its best: the one that does best on tasks that training never sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rl.conftest import MakeHome
from tests.rl.world import ENVIRONMENTS, answer, how_it_ended, start_run

EVALUATION = """
    async def eval_items(self) -> Any:
        return [{"id": "held out"}, {"id": "held out too"}]

"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_environments_own_evaluation_chooses_the_best_checkpoint(
    home_with: MakeHome, tmp_path: Path
) -> None:
    environment = tmp_path / "evaluated.py"
    source = (ENVIRONMENTS / "letters.py").read_text()
    environment.write_text(
        source.replace('name = "letters"', 'name = "evaluated"').replace(
            "    async def compute_reward", f"{EVALUATION.lstrip(chr(10))}    async def compute_reward"
        )
    )
    home = home_with(total_steps=4, steps_per_eval=3, save_checkpoint_interval=2)
    run = start_run(home, environment=str(environment))
    assert how_it_ended(run) == "completed: None"
    report = answer(home, "rl", "results", run.run_id)
    rows = {row["step"]: row for row in report["evaluations"]}
    assert list(rows) == [0, 3, 4], "a baseline, every third step, and the last weights"
    assert all(row["eval/samples"] == 2 for row in rows.values())
    for step in rows:
        recorded = json.loads((run.folder / "evals" / f"step-{step}" / "metrics.json").read_text())
        assert recorded["results"]["all"]["eval/mean_reward"] == rows[step]["eval/mean_reward"]
    step, _, _, value, evaluated = json.loads((run.folder / "training.json").read_text())["best"]
    trained = {step: row["eval/mean_reward"] for step, row in rows.items() if step}
    assert evaluated and value == trained[step] == max(trained.values())
    (best,) = [one for one in report["checkpoints"] if one["best"]]
    assert best["step"] == step and Path(best["folder"]).is_dir()
    log = run.log_path("env").read_text()
    assert "the evaluation is saved" not in log, "the trainer evaluates, not the environment"
