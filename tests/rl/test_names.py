"""What runs are called: by a person, or by the environment and the day."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hermes.core.clock import now_ms
from hermes.errors import UsageError
from hermes.rl.render import results_text
from hermes.rl.run import RlRun, RunState, RunStatus, find_run
from hermes.rl.run_config import RunConfig
from hermes.rl.start import new_run_id
from tests.cli.process import failure
from tests.rl.world import hermes


def add_run(home: Path, run_id: str, later_ms: int = 0) -> None:
    run = RlRun(home, run_id)
    run.folder.mkdir(parents=True)
    run.write_status(RunStatus(started_at_ms=now_ms() + later_ms))


def test_a_run_without_a_name_has_one_that_is_not_used_yet(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        names.append(new_run_id(tmp_path, "My tasks (v2)"))
        add_run(tmp_path, names[-1])
    assert re.fullmatch(r"my-tasks-v2-\d{4}", names[0])
    assert names[1:] == [f"{names[0]}-2", f"{names[0]}-3"]


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-x", ".hidden", "x" * 61, "two words"])
def test_a_name_that_cannot_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a run"):
        new_run_id(tmp_path, "calculator", name)


def test_a_name_is_given_once_and_found_by_its_beginning(tmp_path: Path) -> None:
    add_run(tmp_path, new_run_id(tmp_path, "calculator", "first-try"))
    with pytest.raises(UsageError, match="there is a run 'first-try' already") as taken:
        new_run_id(tmp_path, "calculator", "first-try")
    assert taken.value.hint == "--name first-try-2"
    add_run(tmp_path, "first-try-2", later_ms=1000)
    assert find_run(tmp_path, "first-try").run_id == "first-try", "a whole name is no beginning"
    assert find_run(tmp_path, "first-try-").run_id == find_run(tmp_path, None).run_id == "first-try-2"
    with pytest.raises(UsageError, match="several runs begin with 'first': first-try"):
        find_run(tmp_path, "first")


def test_a_damaged_run_costs_itself_and_no_other(tmp_path: Path) -> None:
    for name in ("good", "bad", "worse"):
        run = RlRun(tmp_path, name)
        RunConfig.parse({"env": {}, "run": {"model": "m"}}, "test").write(run.folder)
        run.write_status(RunStatus(state=RunState.COMPLETED, started_at_ms=now_ms(), ended_at_ms=now_ms()))
    RlRun(tmp_path, "bad").status_path.write_text('{"state":')
    RlRun(tmp_path, "worse").config_path.write_text("- " * 100_000)
    listed = hermes(tmp_path, "rl", "status", "--all")
    assert "good" in listed.stdout and "bad" not in listed.stdout and "bad" in listed.stderr
    assert "worse" in listed.stderr and listed.returncode == 0
    assert "good" in hermes(tmp_path, "rl", "status", "good").stdout
    assert "is damaged" in failure(hermes(tmp_path, "rl", "status", "bad"), 1)[0]


def test_a_table_of_results_has_as_many_columns_as_the_terminal_has_room_for() -> None:
    names = ["reward/mean", "train/loss", "train/learning_rate", "health/group_signal", "probe/gap", "eval/x"]
    history = [{"step": 1, **dict.fromkeys(names, 0.123456)}]
    results = {"run_id": "r", "environment": "e", "status": "completed", "steps": 1, "history": history}
    narrow = results_text(results, 80).split("\n")
    assert all(len(line) <= 80 for line in narrow[1:-1]) and narrow[1].startswith("step  reward/mean")
    assert narrow[-1] == "more in a wider terminal or with --json: probe/gap, eval/x"
    assert "eval/x" in results_text(results).split("\n")[1], "a program gets all of them"
