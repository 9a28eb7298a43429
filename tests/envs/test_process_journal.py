"""The journal of `hermes env process`: which items of a run are written, after kills at any moment."""

from __future__ import annotations

from pathlib import Path

from hermes.envs.groups import GroupWriter
from hermes.envs.modes.process import ProcessJournal, journal_path, read_journal


def test_items_written_after_a_torn_line_are_complete_for_the_next_resume(tmp_path: Path) -> None:
    output = tmp_path / "groups.jsonl"
    writer = GroupWriter(output)
    journal = ProcessJournal.open(writer, "settings-1")
    journal.write(0, [b'{"n": 0}\n'])
    journal.close()
    writer.close()
    with journal_path(output).open("a") as file:
        file.write('{"item": 1, "by')  # killed in the middle of a line

    resumed = ProcessJournal.open(writer := GroupWriter(output), "settings-1")
    assert resumed.done == {0}
    resumed.write(2, [b'{"n": 2}\n'])
    resumed.close()
    writer.close()

    assert read_journal(journal_path(output))[:2] == ("settings-1", {0, 2})
    assert output.read_bytes() == b'{"n": 0}\n{"n": 2}\n'


def test_other_settings_begin_another_file(tmp_path: Path) -> None:
    writer = GroupWriter(tmp_path / "groups.jsonl")
    journal = ProcessJournal.open(writer, "settings-1")
    journal.write(0, [b'{"n": 0}\n'])
    journal.close()
    writer.close()
    second = ProcessJournal.open(other_writer := GroupWriter(tmp_path / "groups.jsonl"), "settings-2")
    assert second.done == set() and other_writer.path.name == "groups_1.jsonl"
    second.close()
    other_writer.close()
