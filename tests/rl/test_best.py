"""Which checkpoint of a run is its best: the one that does best on tasks that training never sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rl.conftest import MakeHome
from tests.rl.test_runs import how_it_ended, start_run
from tests.rl.world import ENVIRONMENTS, answer

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
    home = home_with(total_steps=12, steps_per_eval=2)
    run = start_run(home, environment=str(environment))
    assert how_it_ended(run) == "completed: None"
    step, _, _, value, evaluated = json.loads((run.folder / "training.json").read_text())["best"]
    assert evaluated and 2 <= step < 12 and step % 2 == 0
    found = json.loads((run.folder / "evals" / "metrics.json").read_text())["results"]["all"]
    assert found["eval/samples"] == 2 and 0 <= value <= 1
    (best,) = [one for one in answer(home, "rl", "results", run.run_id)["checkpoints"] if one["best"]]
    assert best["step"] == step and Path(best["folder"]).is_dir()
