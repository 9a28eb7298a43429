"""`hermes env check --red-team`: it finds what can be cheated, and the built-in environments cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.core import Message
from hermes.envs import builtin
from hermes.envs.cli.check import CheckReport, CheckState, check_class
from hermes.envs.cli.discover import environment_folders, locate
from hermes.envs.cli.red_team import CheatedTask, strategies
from hermes.envs.cli.run import load_class
from hermes.envs.cli.sample_grader import STATED, score_conversation
from hermes.envs.cli.template import write_template

REWARD = "return float(written"
FOLDERS = environment_folders(Path("/nonexistent"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return tmp_path


def failures(report: CheckReport) -> list[str]:
    return [
        f"{finding.name}: {finding.detail}"
        for finding in report.findings
        if finding.state is CheckState.FAILED
    ]


@pytest.mark.parametrize("name", ["calculator", "format", "word_limit", "tool_calling", "web_research"])
def test_no_cheater_gains_in_a_built_in_environment(name: str) -> None:
    report = check_class(lambda: load_class(locate(name, FOLDERS)), red_team=True)
    assert failures(report) == []
    assert "cheating policies" in report.findings[-1].detail


@pytest.mark.parametrize("name", ["preference", "reward_function"])
def test_no_cheater_gains_where_the_grader_is_the_users(name: str) -> None:
    """With the stated sample: answers are compared exactly; by a real HTTP server for the reward model."""
    report = check_class(lambda: load_class(locate(name, FOLDERS)), red_team=True)
    assert failures(report) == []
    assert [finding.detail for finding in report.findings if finding.name == "grader"] == [STATED]
    assert "cheating policies" in report.findings[-1].detail


def test_the_sample_grader_pays_for_the_right_answer_only() -> None:
    prompt = {"role": "user", "content": "Join 'snow' and 'drift' to one word. Give the word only."}
    assert score_conversation([prompt, {"role": "assistant", "content": "snowdrift"}]) > 0
    assert score_conversation([prompt, {"role": "assistant", "content": "snow drift snowdrift"}]) < 0
    assert score_conversation([prompt]) < 0


def test_all_built_in_environments_are_in_the_table() -> None:
    names = {path.stem for path in Path(builtin.__path__[0]).glob("*.py")}
    assert names - PLAYED - {"__init__", "generated", "solvable"} == {
        "reasoning_puzzles",
        "harbor",  # its tasks have cheats of their own: envs/harbor/test_trial.py and test_containers.py
        "openenv",  # the reward is the server's
        "program",  # tasks, reward and agent are the user's
        "gsm8k",  # a data set from the hub; word_problems has the same grader
    }


PLAYED = {"preference", "reward_function", "calculator", "format", "word_limit", "tool_calling"}
PLAYED |= {"web_research", "terminal_tasks", "code_tests", "word_problems", "reasoning_gym"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["terminal_tasks", "code_tests", "word_problems", "reasoning_gym"])
def test_no_cheater_gains_where_programs_are_run_and_answers_evaluated(name: str) -> None:
    report = check_class(lambda: load_class(locate(name, FOLDERS)), red_team=True)
    assert failures(report) == []
    assert "cheating policies" in report.findings[-1].detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reward", "caught"),
    [
        ("return float('passed' in result.final_response or written", "forged test output"),
        ("return float(bool(written.get('content')) or written", "files with: 1"),
    ],
)
def test_an_authors_careless_reward_is_caught(reward: str, caught: str, tmp_path: Path) -> None:
    path = write_template("sums", tmp_path)
    path.write_text(path.read_text().replace(REWARD, reward))
    report = check_class(lambda: load_class(path), red_team=True)
    assert any(f"red team: {caught}" in failure for failure in failures(report)), failures(report)


def test_the_strategies_list_candidates_with_the_right_one_in_the_middle() -> None:
    others = [[Message.assistant(text)] for text in ("Oslo", "Rome", "Bern", "Kyiv", "Lima")]
    scripts = strategies(CheatedTask("Where is 7?", (), [Message.assistant("Cairo")], others))
    listed = scripts["all candidates, with commas"][0].content.split(", ")
    assert "Cairo" in listed[1:-1] and len(listed) == 6
    assert scripts["last number of the prompt"][0].content == "7"
    assert not any(name.startswith("shell") for name in scripts)
