"""What runs are called: by a person, or by the environment and the day."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hermes.core.clock import now_ms
from hermes.errors import UsageError
from hermes.rl.run import RlRun, RunStatus, find_run
from hermes.rl.start import new_run_id


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
