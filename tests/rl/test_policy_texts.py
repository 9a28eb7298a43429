"""A run that starts from a policy with texts: they stand in its rollouts, and around what it has trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.core.texts import hashes
from hermes.rl.checks.preflight import preflight
from hermes.rl.config.resolve import with_edit
from hermes.rl.config.reward_function import select_reward_function
from hermes.rl.run import find_run
from hermes.rl.weights.open import find_policy
from hermes.store import Filter, Reader
from hermes.training.policy_registry import PolicyRecord, PolicyRegistry
from tests.cli.process import failure
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, hermes, how_it_ended

TEXTS = {"system_prompt": "Say vowels.", "examples": "For example: aeiou."}
REWARD = """
def vowels(ctx):
    return sum(letter in "aeiou" for letter in ctx.answer.lower()) / (len(ctx.answer) or 1)
"""
FOREIGN = """
from atroposlib.envs.base import BaseEnv

class ForeignEnv(BaseEnv):
    name = "foreign"

    async def setup(self):
        pass

    async def get_next_item(self):
        return 1

    async def evaluate(self, *args, **kwargs):
        pass
"""
START = ("--set", "start_from=policy:kind")


def home_with_texts(home_with: MakeHome) -> Path:
    home = home_with(total_steps=1)
    PolicyRegistry(home).add(PolicyRecord("KIND", "tiny", None, None, name="kind", texts=TEXTS))
    return home


@pytest.mark.timeout(300)
def test_the_texts_of_a_policy_stand_in_the_rollouts_that_train_its_weights(
    home_with: MakeHome, tmp_path: Path
) -> None:
    home = home_with_texts(home_with)
    (tmp_path / "my.py").write_text(REWARD)
    rows = ({"prompt": f"Say something about {thing}."} for thing in ("rain", "trees", "boats", "tea"))
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = ("--prompts", str(tmp_path / "tasks.jsonl"), "--reward", f"{tmp_path / 'my.py'}:vowels")
    edits = ("group_size=4", "batch_size=8", "max_token_length=8", "max_agent_turns=1")
    flags = [word for edit in edits for word in ("--set", edit)]
    words = ("rl", "start", *task, "--toolsets", "none", *flags)
    run = find_run(home, answer(home, *words, *START)["run_id"])
    assert how_it_ended(run) == "completed: None"
    with Reader(home / "hermes.db") as reader:
        trajectories = [reader.get(entry.header.id) for entry in reader.trajectories(Filter())]
    assert len(trajectories) >= 8
    for trajectory in trajectories:
        assert trajectory.header.config["texts"] == hashes(TEXTS)
        assert trajectory.messages[0].content == "Say vowels.\n\nFor example: aeiou."
    opened = find_policy(load({}, {"HERMES_HOME": str(home)}), f"run:{run.run_id}")
    assert opened is not None and opened.texts == TEXTS
    assert answer(home, "policy", "promote", run.run_id)["name"].startswith(f"{run.run_id}@step-")
    record = PolicyRegistry(home).current()
    assert record.texts == TEXTS and record.weights is not None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_preflight_samples_with_the_texts_too(
    home_with: MakeHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_with_texts(home_with)
    monkeypatch.setenv("HERMES_HOME", str(home))  # that of its child processes
    (tmp_path / "my.py").write_text(REWARD)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "Name a colour."}\n{"prompt": "Name a city."}\n')
    config = load({}, {"HERMES_HOME": str(home)})
    reward = f"{tmp_path / 'my.py'}:vowels"
    resolved = select_reward_function(config, None, str(tmp_path / "tasks.jsonl"), reward, None, None)
    edits = {"env.enabled_toolsets": [], "env.max_token_length": 8, "tinker.start_from": "policy:kind"}
    for name, value in edits.items():
        resolved = with_edit(config, resolved.selection, name, value, unlock=True)
    preflight(config, resolved, groups=2)
    with Reader(home / "hermes.db") as reader:
        headers = [entry.header for entry in reader.trajectories(Filter())]
    assert headers and all(header.config["texts"] == hashes(TEXTS) for header in headers)


def test_texts_of_its_own_stay_and_an_environment_that_cannot_have_any_is_refused(
    home_with: MakeHome, tmp_path: Path
) -> None:
    home = home_with_texts(home_with)
    own = ("--set", 'texts={"system_prompt": "Mine."}')
    run = find_run(home, answer(home, "rl", "start", "--env", "letters", *START, *own)["run_id"])
    hermes(home, "rl", "stop", run.run_id, "--now")
    assert run.config().env.texts == {"system_prompt": "Mine."}
    path = tmp_path / "foreign.py"
    path.write_text(FOREIGN)
    error, fix = failure(hermes(home, "rl", "start", "--env", str(path), *START), 2)
    assert "policy kind has texts, and the prompts of foreign are its own" in error and "start_from" in fix
    assert [folder.name for folder in (home / "runs").iterdir() if folder.is_dir()] == [run.run_id]
