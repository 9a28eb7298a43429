"""The file lock: one holder, released by `release`, by the block's end and by the process's end."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.disk.filelock import FileLock

HOLD = """
import sys
from pathlib import Path
from hermes.disk.filelock import FileLock
lock = FileLock(Path(sys.argv[1]))
lock.acquire()
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire(blocking=False)
    assert not second.acquire(blocking=False)
    first.release()
    first.release()
    with second:
        assert not first.acquire(blocking=False)
    assert first.acquire(blocking=False)
    with pytest.raises(RuntimeError):
        first.acquire()
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        assert not FileLock(path).acquire(blocking=False)
        child.kill()
        child.wait()
        assert FileLock(path).acquire(blocking=False)


def test_a_lock_that_cannot_be_opened_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "missing" / "lock").acquire()
