"""The agent's tools for export, compression, SFT, DPO and improvement: each runs what a person agreed to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hermes.config.load import load
from hermes.core import Message
from hermes.errors import UsageError
from hermes.rl.budget import charge_training, remaining, training_allowance
from hermes.store import Writer
from tests import records
from tests.cli.process import hermes
from tests.cli.terminal import hermes_terminal
from tests.fakes.provider import FakeProvider, text, tool_calls
from tests.rl.pilot import Pilot, Script

ROW = {"messages": [{"role": "user", "content": "2 x 3?"}, {"role": "assistant", "content": "6"}]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Writer(tmp_path / "hermes.db") as writer:
        records.record(writer, [Message.user("2 x 3?"), Message.assistant("6")], tools=(), run_id="r")
    (tmp_path / "work").mkdir()
    return tmp_path


def chat(home: Path, pilot: Pilot, *answers: str, timeout_s: float = 60.0) -> Script:
    """A conversation in which a person answers each question of the tools."""
    script = Script(pilot)
    with FakeProvider(script.answer) as provider:
        flags = ("--toolsets", "training", "--base-url", provider.base_url, "--model", "pilot")
        with hermes_terminal(home, "-q", "Do it", *flags, cwd=home / "work") as terminal:
            for answer in answers:
                terminal.expect(r"wants to run this command on this machine", timeout_s)
                terminal.expect(r"Allow\?", timeout_s)
                terminal.line(answer)
            terminal.expect("The model is trained", timeout_s)
    return script


def test_data_is_exported_and_compressed_once_a_person_has_agreed(home: Path) -> None:
    def pilot() -> Pilot:
        yield "export_dataset", {"format": "trl-sft", "output": "rows.jsonl", "run": "r"}
        yield "export_dataset", {"format": "trl-sft", "output": "refused.jsonl"}
        yield "export_dataset", {"format": "trl-sft", "output": "../outside.jsonl"}
        yield "compress_dataset", {"source": "r", "output": "short.jsonl", "target_max_tokens": 2000}

    script = chat(home, pilot(), "y", "n", "y")
    exported, refused, outside = script.results("export_dataset")
    assert json.loads((home / "work" / "rows.jsonl").read_text())["messages"][-1]["content"] == "6"
    assert "error" not in exported and "refused" in json.dumps(refused)
    assert not (home / "work" / "refused.jsonl").exists() and not (home / "outside.jsonl").exists()
    assert outside["error"] == "../outside.jsonl is not in the workspace"
    assert "error" not in script.results("compress_dataset")[0] and (home / "work" / "short.jsonl").is_file()


def test_nothing_runs_where_nobody_can_be_asked(home: Path) -> None:
    def pilot() -> Pilot:
        yield "train_sft", {"max_steps": 1, "base_model": "acme/other-1B"}
        yield "improve_policy", {"max_steps": 1}

    script = Script(pilot())
    with FakeProvider(script.answer) as provider:
        flags = ("--toolsets", "training", "--base-url", provider.base_url, "--model", "pilot")
        done = hermes(home, "-q", "Do it", *flags)
    assert done.returncode == 0, done.stderr
    forbidden, unattended = (result for _, _, result in script.said)
    assert "acme/other-1B may not be trained" in forbidden["error"]
    assert "no user is present" in json.dumps(unattended)


def test_trainings_spend_the_budget_of_the_task(home: Path) -> None:
    def settings(**values: Any) -> Any:
        named = {f"rl.{name}": value for name, value in values.items()}
        return load(named, {"HERMES_HOME": str(home)})

    config = settings(max_steps=10, max_hours=1.0)
    assert training_allowance(config, "task", 10) == 1.0
    charge_training(config, "task", 8, 0.25)
    assert (remaining(config, "task").steps, remaining(config, "task").hours) == (2, 0.75)
    with pytest.raises(UsageError, match="max_steps is 3, and 2 are left"):
        training_allowance(config, "task", 3)
    assert remaining(config, "another").steps == 10
    with pytest.raises(UsageError, match=r"a budget of \$1"):
        training_allowance(settings(max_usd=1.0, service="https://example.org"), "task", 1)
    assert training_allowance(settings(max_usd=1.0), "task", 1) is None


@pytest.mark.slow
def test_an_adapter_is_trained_on_files_of_the_workspace(home: Path) -> None:
    def pilot() -> Pilot:
        yield "train_sft", {"files": ["rows.jsonl"], "max_steps": 1}

    (home / "work" / "rows.jsonl").write_text(f"{json.dumps(ROW)}\n" * 8)
    (result,) = chat(home, pilot(), "y", timeout_s=300.0).results("train_sft")
    assert "error" not in result, result
    assert (home / "runs" / result["run_id"]).is_dir() and result["weights"]


def test_hermes_is_found_in_the_agents_shell(home: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin"}
    assert shutil.which("hermes", path=environ["PATH"]) is None
    with FakeProvider(
        [tool_calls([("terminal", {"command": "command -v hermes"})]), text("Yes.")]
    ) as provider:
        flags = ("--toolsets", "terminal", "--base-url", provider.base_url, "--model", "pilot")
        done = hermes(home, "-q", "Do it", *flags, "--yes", "--sandbox", "local", env=environ)
        shown = provider.posts[1].json["messages"][-1]["content"]
    assert done.returncode == 0 and "bin/hermes" in shown, (done.stderr, shown)
