"""`run:ID` in the place of a model's name, while the run goes on and after it has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.cli.terminal.interrupted import STOPPED
from hermes.core.names import policy_name
from hermes.rl.results import saved_checkpoints
from hermes.rl.run import RlRun, last_step
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, change_settings, hermes, policy_answers, start_run, tiny_model
from tests.waiting import wait_until

SHORT = {"HERMES_SAMPLING__MAX_TOKENS": "8"}


def _asked(home: Path, run: RlRun) -> str:
    """The toolsets are those that the policy was trained with; the name that the answer came from."""
    done = hermes(home, "--model", f"run:{run.run_id}", "-q", "Say letters.", "--json", env=SHORT)
    told = json.loads(done.stdout)
    assert told["usage"]["output_tokens"] > 0, done.stderr
    seen = hermes(home, "trajectories", "show", told["trajectory_id"], "--raw", "--json").stdout
    assert '"calculator"' in seen and '"terminal"' not in seen
    name: str = told["model"]
    return name


def _tested(home: Path, run: RlRun) -> int:
    flags = ("--num-steps", "1", "--group-size", "2", "--model", f"run:{run.run_id}")
    (tested,) = answer(home, "rl", "test", *flags)["models_tested"]
    assert "error" not in tested, tested
    completions: int = tested["total_completions"]
    return completions


def last_checkpoint(run: RlRun) -> int:
    step: int = saved_checkpoints(run)[-1]["step"]
    return step


def _generate(home: Path, run: RlRun) -> subprocess.CompletedProcess[str]:
    prompts = home / "prompts.jsonl"
    prompts.write_text('{"prompt": "Say letters."}\n')
    flags = ("--run-name", "letters", "--max-turns", "1", "--toolsets", "none", "--num-workers", "1")
    words = ("batch", "--dataset-file", str(prompts), *flags, "--model", f"run:{run.run_id}")
    return hermes(home, *words, env=SHORT, cwd=home)


def _served(home: Path, run: RlRun) -> None:
    command = [sys.executable, "-m", "hermes", "rl", "serve", run.run_id, "--port", "0"]
    policy_answers(command, {**os.environ, "HERMES_HOME": str(home)}, STOPPED["engine serve"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_is_a_model_with_its_own_tools_while_it_goes_on_and_afterwards(
    home_with: MakeHome, tmp_path: Path
) -> None:
    home = home_with(total_steps=100_000, max_token_trainer_length=2048)
    change_settings(home, model=str(tiny_model(tmp_path / "model", 8192)))
    run = start_run(home, "enabled_toolsets=[math]")
    wait_until(lambda: last_step(run) >= 2)
    assert _asked(home, run) == f"{run.run_id}@newest"
    assert _tested(home, run) == 2
    assert "the run's own engine serves it" in hermes(home, "rl", "serve", run.run_id).stdout
    said = _generate(home, run)
    made = answer(home, "trajectories", "list", "--source", "batch")
    assert [each["model"] for each in made] == [f"{run.run_id}@newest"], said.stderr
    answer(home, "rl", "stop", run.run_id)
    assert _asked(home, run) == policy_name(run.run_id, last_checkpoint(run))
    assert _tested(home, run) == 2
    _served(home, run)
