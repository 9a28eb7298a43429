"""Drafts of skills from trajectories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.agent.build import open_writer
from hermes.config.load import load
from hermes.config.paths import db_path
from hermes.core import Boundary, Message, Outcome, Reward, StopReason, ToolCall
from hermes.errors import UsageError
from hermes.skills.install import check_content, install, prepare
from hermes.skills.learn import choose_trajectory, draft_skill, suggest_name
from hermes.store import Reader
from tests import records
from tests.cli.process import failure, hermes

QUESTION = "Please count the lines of the CSV files in this folder and name the longest."
COMMAND = "wc -l *.csv | sort -n\necho '```'"


def messages(question: str = QUESTION) -> list[Message]:
    call = ToolCall("c1", "terminal", json.dumps({"command": COMMAND}))
    other = ToolCall("c2", "read_file", json.dumps({"path": "a.csv"}))
    return [
        Message.user(question),
        Message.assistant("", tool_calls=(call, other)),
        Message.tool(call, "12 a.csv"),
        Message.tool(other, "x,y"),
        Message.assistant("a.csv has 12 lines."),
    ]


def write(
    home: Path, *, reward: float | None = None, outcome: Outcome = records.COMPLETED, **known: object
) -> str:
    config = load({}, {"HERMES_HOME": str(home), "HOME": str(home)})
    with open_writer(config) as writer:
        trajectory_id = records.record(writer, messages(), outcome=outcome, **known)
        if reward is not None:
            writer.add_reward(Reward(trajectory_id, reward, "test")).result()
    return trajectory_id


def choose(home: Path, reference: str) -> str:
    with Reader(db_path(home)) as reader:
        return choose_trajectory(reader, reference).header.id


def test_a_draft_is_a_valid_skill_with_the_steps_that_worked(home: Path, tmp_path: Path) -> None:
    trajectory_id = write(home)
    with Reader(db_path(home)) as reader:
        draft = draft_skill(choose_trajectory(reader, trajectory_id))
    assert draft.name == "count-lines-csv-files"
    check_content(draft.name, draft.text)
    assert "1. `terminal`" in draft.text and "2. `read_file`" in draft.text
    assert draft.text.count("```") == 4, "a fence inside a command cannot end the block"
    assert "> a.csv has 12 lines." in draft.text and trajectory_id in draft.text


def test_of_a_run_the_best_success_is_taken(home: Path) -> None:
    write(home, reward=0.2, run_id="r1")
    best = write(home, reward=0.9, run_id="r1")
    write(home, reward=0.0, run_id="r1")
    assert choose(home, "r1") == best


@pytest.mark.parametrize(
    ("reward", "outcome", "reason"),
    [
        (0.0, records.COMPLETED, "gave it no reward"),
        (None, Outcome(StopReason.MAX_TURNS, Boundary.LIMIT), "ended with"),
    ],
)
def test_nothing_is_learned_from_work_that_failed(
    home: Path, reward: float | None, outcome: Outcome, reason: str
) -> None:
    trajectory_id = write(home, reward=reward, outcome=outcome, run_id="r1")
    with pytest.raises(UsageError, match=reason):
        choose(home, trajectory_id)
    with pytest.raises(UsageError, match="none of the 1 trajectories"):
        choose(home, "r1")


def test_failed_calls_are_kept_as_warnings(home: Path) -> None:
    config = load({}, {"HERMES_HOME": str(home), "HOME": str(home)})
    with open_writer(config) as writer:
        trajectory_id = records.record(writer, messages(), failed_tools=True)
    with Reader(db_path(home)) as reader:
        text = draft_skill(reader.get(trajectory_id)).text
    assert "## What did not work" in text and "- `terminal` with" in text


def test_names_come_from_the_words_of_the_task() -> None:
    assert suggest_name("How do I convert the model to GGUF?") == "do-i-convert-model"
    assert suggest_name("…") == "learned-skill"


def test_the_command_writes_a_draft_that_installs_and_overwrites_nothing(home: Path, tmp_path: Path) -> None:
    write(home)
    done = hermes(home, "skills", "learn", "last", "--name", "count-lines", "--out", str(tmp_path), "--json")
    file = Path(json.loads(done.stdout)["file"])
    assert install(home, prepare(str(file.parent))).name == "count-lines"
    again = hermes(home, "skills", "learn", "last", "--name", "count-lines", "--out", str(tmp_path))
    assert "exists already" in failure(again, 2)[0]
    bad = hermes(home, "skills", "learn", "last", "--name", "Not A Name", "--out", str(tmp_path))
    assert "not a skill name" in failure(bad, 2)[0]
