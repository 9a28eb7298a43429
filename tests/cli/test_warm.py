"""Commands that are started from a process which has read their modules are what cold ones are."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import warm

COMMANDS = (
    ("config", "get", "sandbox.backend"),
    ("config", "set", "modle", "x"),
    ("export", "--format", "nope"),
)


def environ(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HERMES_HOME": str(home), "LANG": os.environ.get("LANG", "")}


@pytest.mark.parametrize("arguments", COMMANDS)
def test_output_errors_and_exit_code_are_those_of_a_cold_start(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "hermes", *arguments]
    cold = subprocess.run(command, env=environ(tmp_path), capture_output=True, text=True)
    done = warm.run(arguments, environ(tmp_path), "", 60)
    assert (done.returncode, done.stdout, done.stderr) == (cold.returncode, cold.stdout, cold.stderr)
    assert done.stdout + done.stderr


def test_a_command_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    key = {"HERMES_MODEL": "vllm/first"}
    shown = [
        warm.run(("config", "get", "model"), {**environ(tmp_path), **more}, "", 60).stdout
        for more in (key, {}, key)
    ]
    assert shown[0] == shown[2] == "vllm/first\n"
    assert shown[1] != shown[0]


def test_a_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    with lock.open() as file, pytest.raises(subprocess.TimeoutExpired):
        fcntl.flock(file, fcntl.LOCK_EX)
        editor = {"EDITOR": f"flock {lock} true"}
        warm.run(("config", "edit"), environ(tmp_path) | editor, "", 0.5)
    assert warm.run(("--version",), environ(tmp_path), "", 60).returncode == 0
