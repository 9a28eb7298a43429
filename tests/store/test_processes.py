"""Several processes, killed processes, and a disk that is full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.core import StopReason
from hermes.errors import StoreError
from hermes.store import Filter, Reader, Writer
from hermes.store.sqlite import connect_reader
from tests import records

RECORD_MANY = """
import sys
from pathlib import Path
from hermes.store import Writer
from tests import records
with Writer(Path(sys.argv[1])) as writer:
    for number in range(int(sys.argv[2])):
        print(records.record(writer, records.conversation(f"question {number}")), flush=True)
"""

RECORD_AND_WAIT = """
import sys, time
from pathlib import Path
from hermes.core import Message
from hermes.store import Writer
from tests import records
writer = Writer(Path(sys.argv[1]))
messages = [Message.user("unfinished"), Message.assistant("business")]
print(records.record(writer, messages, outcome=None), flush=True)
time.sleep(600)
"""


def run(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path.cwd(),
    )


def test_four_processes_write_at_once_and_nothing_is_lost_or_locked(db: Path) -> None:
    children = [run(RECORD_MANY, db, 25) for _ in range(4)]
    acknowledged = [line for child in children for line in child.communicate()[0].split()]
    assert [child.returncode for child in children] == [0] * 4
    assert len(set(acknowledged)) == 100
    with Reader(db) as reader:
        assert reader.count() == 100
        assert {row.id for row in reader.summaries(limit=1000)} == set(acknowledged)
    assert connect_reader(db).execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_trajectory_whose_process_was_killed_is_cut(db: Path) -> None:
    child = run(RECORD_AND_WAIT, db)
    assert child.stdout is not None
    trajectory_id = child.stdout.readline().strip()
    with Reader(db) as reader:
        assert reader.get(trajectory_id).outcome is None
        assert reader.summaries()[0].stop_reason == "running"
    with Writer(db):
        pass  # a second process opening the store does not touch a living one's trajectory
    with Reader(db) as reader:
        assert reader.get(trajectory_id).outcome is None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with Reader(db) as reader:
        found = reader.get(trajectory_id)
        assert [message.content for message in found.messages] == ["unfinished", "business"]
        assert found.outcome is not None
        assert found.outcome.stop_reason is StopReason.CUT
        assert found.outcome.infrastructure
    with Writer(db):
        pass
    with Reader(db) as reader:
        assert [row.id for row in reader.summaries(Filter(stop_reason="cut"))] == [trajectory_id]
        assert reader.summaries()[0].turns == 1


def test_a_full_disk_is_reported_and_loses_nothing_acknowledged(small_disk: Path) -> None:
    db = small_disk / "hermes.db"
    acknowledged = []
    with Writer(db) as writer:
        with pytest.raises(StoreError) as caught:
            for number in range(1000):
                acknowledged.append(records.record(writer, records.conversation("x" * 20_000 + str(number))))
        assert "free space" in caught.value.hint
        assert str(db) in caught.value.message
    assert acknowledged
    with Reader(db) as reader:
        assert {row.id for row in reader.summaries(limit=1000)} >= set(acknowledged)
        for trajectory_id in acknowledged:
            assert reader.get(trajectory_id).outcome == records.COMPLETED
    assert connect_reader(db).execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_home_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot open the database") as caught:
        Writer(tmp_path / "file" / "hermes.db")
    assert "HERMES_HOME" in caught.value.hint
