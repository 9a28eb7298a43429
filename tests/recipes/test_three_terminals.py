"""Step 4 of the text with a tiny model: run-api, launch_training.py and `serve` of an environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.recipes.scripts import RECIPES, SYSTEM, script
from tests.rl.world import ENVIRONMENTS, tiny_model
from tests.training.world import start_api

CONFIG = """
env:
  tokenizer_name: {model}
  group_size: 4
  batch_size: 8
  total_steps: 2
  max_token_length: 8
  ensure_scores_are_not_same: false
  rollout_server_url: {api}
  use_wandb: false
openai:
  - model_name: {model}
    base_url: http://localhost:{port}/v1
    weight: 1.0
tinker:
  lora_rank: 4
  learning_rate: 0.001
  max_token_trainer_length: 256
  save_checkpoint_interval: 0
"""


@contextmanager
def terminal(home: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    environ = {key: os.environ[key] for key in SYSTEM if key in os.environ}
    with (home / "terminal.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, *command],
            env={**environ, "HERMES_HOME": str(home), "OMP_NUM_THREADS": "1"},
            cwd=home,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_three_terminals_train_a_model_and_its_weights_are_downloaded(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    api, url = start_api(tmp_path)
    try:
        file = tmp_path / "run.yaml"
        file.write_text(CONFIG.format(model=model, api=url, port=free_port()))
        environment = (str(ENVIRONMENTS / "letters.py"), "serve", "--config", str(file))
        trainer = (str(RECIPES / "launch_training.py"), "--config", str(file), "--wandb-group", "tests")
        with terminal(tmp_path, *trainer, "--no-wandb") as training, terminal(tmp_path, *environment):
            assert training.wait(timeout=200) == 0, (tmp_path / "terminal.log").read_text()
    finally:
        api.kill()
    state = json.loads(next((tmp_path / "runs").glob("*/training.json")).read_text())
    assert [checkpoint[0] for checkpoint in state["kept"]] == [2] and state["settings"]["rank"] == 4
    done = script(tmp_path, "tinker_atropos/utils/download_weights.py")
    run_id = state["kept"][0][1].removeprefix("tinker://").partition("/")[0].replace(":", "~")
    assert done.stdout.strip() == f"checkpoints/{run_id}", done.stderr
    named = json.loads((tmp_path / "checkpoints" / run_id / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == str(model) and named["r"] == 4
