"""`hermes rl start --prompts FILE --reward FILE.py:FUNCTION`: a run without an environment of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.rl import tool_handlers
from hermes.rl.results import step_rows
from hermes.rl.run import find_run, read_metrics
from tests.cli.process import failure
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, hermes, how_it_ended

REWARD = """
def vowels(ctx):
    text = ctx.answer.lower()
    return sum(letter in "aeiou" for letter in text) / len(text) if text else 0.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a person keeps prompts and a reward function."""
    place = tmp_path / "mine"
    place.mkdir()
    (place / "my.py").write_text(REWARD)
    rows = ({"prompt": f"Say something about {thing}."} for thing in ("rain", "trees", "boats", "tea"))
    (place / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def test_a_run_over_prompts_and_a_function_is_configured_by_two_flags(
    home_with: MakeHome, folder: Path
) -> None:
    home = home_with()
    words = ("rl", "start", "--prompts", "tasks.jsonl", "--reward", "my.py:vowels", "--toolsets", "math")
    run = find_run(home, answer(home, *words, "--set", "group_size=4", cwd=folder)["run_id"])
    config = run.config()
    assert config.run.environment == "vowels" and run.run_id.startswith("vowels-")
    assert config.run.toolsets == ["math"]
    assert config.env.get("reward") == f"{folder / 'my.py'}:vowels", "found from any folder"
    assert config.env.get("dataset_name") == str(folder / "tasks.jsonl")
    assert config.env.get("enabled_toolsets") == ["math"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_over_four_prompts_goes_on_without_an_evaluation(home_with: MakeHome, folder: Path) -> None:
    home = home_with(total_steps=2, steps_per_eval=1)
    words = ("rl", "start", "--prompts", "tasks.jsonl", "--reward", "my.py:vowels")
    edits = ("group_size=4", "batch_size=8", "max_token_length=8", "max_agent_turns=1")
    flags = [word for edit in edits for word in ("--set", edit)]
    run = find_run(home, answer(home, *words, *flags, cwd=folder)["run_id"])
    assert how_it_ended(run) == "completed: None"
    assert [row["step"] for row in read_metrics(run.metrics_path)] == [1, 2], "no row of an evaluation"
    log = run.log_path("trainer").read_text()
    lines = [line for line in log.splitlines() if line.endswith("goes on without an evaluation")]
    assert len(lines) == 1 and "failed" not in log, log


@pytest.mark.parametrize(
    ("flags", "error", "fix"),
    [
        (("--prompts", "tasks.jsonl"), "--reward is missing", "FILE.py:FUNCTION"),
        (("--reward", "my.py:vowels"), "--prompts is missing", "belong together"),
        (("--prompts", "tasks.jsonl", "--reward", "my.py:consonants"), "no function 'consonants'", "vowels"),
        (("--prompts", "none.jsonl", "--reward", "my.py:vowels"), "there is no dataset file", "check"),
        (("--env", "letters", "--prompts", "tasks.jsonl"), "--env letters has prompts", "leave out"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_started(
    home_with: MakeHome, folder: Path, flags: tuple[str, ...], error: str, fix: str
) -> None:
    home = home_with()
    what, how = failure(hermes(home, "rl", "start", *flags, cwd=folder), 2)
    assert error in what and fix in how and not (home / "runs").exists()


def test_the_agent_cannot_name_code_to_run(home_with: MakeHome, folder: Path) -> None:
    config = load(environ={"HERMES_HOME": str(home_with())})
    tool_handlers.select_environment(config, {"name": "reward_function"}, "task")
    edit = {"field": "reward", "value": f"{folder / 'my.py'}:vowels"}
    refused = tool_handlers.edit_config(config, edit, "task")
    assert "names code that runs on this machine" in refused["error"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_bundled_model_is_trained_on_a_function(tmp_path: Path, folder: Path, bundled_home: Path) -> None:
    """The whole way: prompts and a function in, steps with signal and weights out."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(bundled_home / "models")
    edits = {
        "total_steps": 2,
        "group_size": 4,
        "batch_size": 8,
        "max_token_length": 16,
        "max_agent_turns": 1,
        "save_checkpoint_interval": 2,
        "lora_rank": 4,
    }
    flags = [word for name, value in edits.items() for word in ("--set", f"{name}={value}")]
    words = ("--prompts", str(folder / "tasks.jsonl"), "--reward", f"{folder / 'my.py'}:vowels", "--unlock")
    run = find_run(home, answer(home, "rl", "start", *words, *flags)["run_id"])
    assert how_it_ended(run) == "completed: None"
    rows = step_rows(run)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(0 < row["reward/mean"] < 1 and row["health/group_signal"] > 0 for row in rows), rows
    assert (Path(answer(home, "rl", "weights", run.run_id)["path"]) / "adapter_config.json").is_file()
