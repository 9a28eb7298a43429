"""The append-only log: lines are whole or absent, torn tails are cut, several writers do not mix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.disk.appendlog import AppendLog, read_lines, repair

WRITE = """
import sys
from pathlib import Path
from hermes.disk.appendlog import AppendLog
with AppendLog(Path(sys.argv[1]), fsync=False) as log:
    for number in range(200):
        log.append([f'{{"writer": {sys.argv[2]}, "number": {number}, "text": "{"x" * 5000}"}}'] * 2)
"""


def test_lines_come_back_in_order_and_unicode_survives(tmp_path: Path) -> None:
    with AppendLog(tmp_path / "log") as log:
        log.append(['{"a": 1}', '{"b": "ü"}'])
        log.append(['{"c": "\ud800"}'])
    lines = [json.loads(line) for line in read_lines(tmp_path / "log")]
    assert lines == [{"a": 1}, {"b": "ü"}, {"c": "\ud800"}]


@pytest.mark.parametrize("tail", ['{"b": "' + "x" * 200_000, "{", '{"b": 1}]', "12"])
def test_a_torn_tail_is_skipped_and_cut_by_the_next_append(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "log"
    path.write_text('{"a": 1}\n' + tail)
    assert list(read_lines(path)) == [b'{"a": 1}']
    with AppendLog(path) as log:
        log.append(['{"c": 3}'])
    assert path.read_text() == '{"a": 1}\n{"c": 3}\n'


def test_a_complete_last_object_counts_though_its_newline_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('\n{"a": 1}\n{"b": 2}')
    assert list(read_lines(path)) == [b"", b'{"a": 1}', b'{"b": 2}']
    with AppendLog(path) as log:
        log.append(['{"c": 3}'])
    assert path.read_text() == '\n{"a": 1}\n{"b": 2}\n{"c": 3}\n'


def test_repair_changes_only_a_torn_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"a": 1}\n{"b"')
    assert repair(path)
    assert not repair(path)
    assert path.read_text() == '{"a": 1}\n'
    path.write_text('{"b"')
    assert repair(path)
    assert path.read_text() == ""
    assert not repair(path)


def test_a_full_disk_leaves_none_of_the_lines(small_disk: Path) -> None:
    path = small_disk / "log"
    with AppendLog(path) as log:
        log.append(["{}"])
        with pytest.raises(OSError):
            log.append(['{"text": "' + "x" * 1000 + '"}'] * 100_000)
        assert path.read_text() == "{}\n"
        log.append(['{"a": 1}'])
    assert list(read_lines(path)) == [b"{}", b'{"a": 1}']


def test_the_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, str(path), str(n)]) for n in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    entries = [json.loads(line) for line in read_lines(path)]
    assert len(entries) == 1200
    for writer in range(3):
        numbers = [entry["number"] for entry in entries if entry["writer"] == writer]
        assert numbers == [number for number in range(200) for _ in range(2)]
    assert all(first == second for first, second in zip(entries[::2], entries[1::2], strict=True))
