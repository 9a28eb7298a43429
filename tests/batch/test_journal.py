"""The journal: what was acknowledged is there, a torn line is not, and a sample counts once."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.batch.journal import JournalSegment, SampleEntry, SampleState, cut_torn_tails, read_journal
from hermes.batch.output.finalise import finalise
from hermes.batch.overview import overview
from hermes.batch.plan import SampleKey, read_progress, unfinished_samples
from hermes.batch.tasks import TaskRow
from hermes.disk.files import atomic_write
from hermes.errors import HermesError
from tests.batch.made import dataset, done, failed, filtered, row, spec, write


def entry(key: str, sample: int = 0, state: SampleState = SampleState.DONE) -> SampleEntry:
    return SampleEntry(key, sample, state, {**row(key, sample), "text": "ü \ud800 \n end"})


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    segment = JournalSegment(tmp_path / "a.jsonl", str)
    futures = [segment.append(entry(str(n))) for n in range(100)]
    for future in futures:
        future.result()
    assert [each.key for each in read_journal(tmp_path)] == [str(n) for n in range(100)]
    segment.close()


def test_a_torn_last_line_is_cut_and_owed_again(tmp_path: Path) -> None:
    segment = JournalSegment(tmp_path / "a.jsonl", str)
    for key in ("one", "two"):
        segment.append(entry(key)).result()
    segment.close()
    path = tmp_path / "a.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert [each.key for each in read_journal(tmp_path)] == ["one"]
    assert cut_torn_tails(tmp_path) == 1
    assert cut_torn_tails(tmp_path) == 0
    segment = JournalSegment(path, str)
    segment.append(entry("three")).result()
    segment.close()
    assert [each.key for each in read_journal(tmp_path)] == ["one", "three"]


def test_unfinished_samples_are_every_row_and_sample_that_has_no_terminal_entry() -> None:
    rows = [TaskRow(name, ("p",)) for name in ("a", "b", "c")]
    progress = read_progress(
        [
            entry("a", 0),
            entry("b", 0, SampleState.FAILED),
            entry("b", 1, SampleState.FILTERED),
            entry("c", 0, SampleState.FAILED),
            entry("c", 0),
            entry("a", 0, SampleState.FAILED),
        ]
    )
    assert unfinished_samples(rows, 2, progress) == [SampleKey("b", 0), SampleKey("a", 1), SampleKey("c", 1)]
    assert list(progress.failures) == [SampleKey("b", 0)]


def test_the_first_terminal_entry_of_a_sample_stands() -> None:
    first, second = (
        SampleEntry("a", 0, SampleState.DONE, {"n": 1}),
        SampleEntry("a", 0, SampleState.DONE, {"n": 2}),
    )
    assert read_progress([first, second]).finished[SampleKey("a", 0)] == first


def test_a_full_disk_fails_the_append_and_leaves_whole_lines(small_disk: Path) -> None:
    segment = JournalSegment(small_disk / "a.jsonl", str)
    written = 0
    with pytest.raises(HermesError, match="cannot write the journal"):
        for n in range(1000):
            segment.append(SampleEntry(str(n), 0, SampleState.DONE, row(str(n), text="x" * 3000))).result()
            written += 1
    assert written > 0
    assert [each.key for each in read_journal(small_disk)] == [str(n) for n in range(written)]
    segment.close()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a line: what holds it, and its name or number there."""
    names: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for name in names:
        yield value, name
        yield from _places(value[name])


_WRONG_VALUES: tuple[Any, ...] = (
    *(7, "text", None, [1], {"a": 1}, True, [None], [{"from": 3}], [], {}, "", 0, -1, False, 1e308),
)


def test_a_line_with_the_right_keys_and_wrong_types_is_ignored_everywhere(tmp_path: Path) -> None:
    """Every value in every place of a line, each line of a sample of its own."""
    calls = {"count": 3, "success": 2, "failure": 1}
    tools: dict[str, Any] = {"tool_names": ["read"], "tool_stats": {"read": calls, "shell": calls}}
    kinds: tuple[Callable[[str], SampleEntry], ...] = (
        lambda key: done(key, **tools),
        lambda key: filtered(key, "too short", **tools),
        lambda key: failed(key, "ProviderError: down", trajectory_id="t"),
    )
    lines: list[str] = []
    for make in kinds:
        for number in range(len(list(_places(make("x").to_json())))):
            for value in _WRONG_VALUES:
                damaged = copy.deepcopy(make(f"x{len(lines)}").to_json())
                place, name = list(_places(damaged))[number]
                place[name] = value
                lines.append(json.dumps(damaged))
    keys = ["a", "b", *(f"x{number}" for number in range(len(lines)))]
    folder = write(tmp_path, [done("a"), done("b")])
    (folder / "journal" / "zzz.jsonl").write_text("\n".join([*lines, "[" * 100_000, ""]))
    atomic_write(folder / "run.json", json.dumps(spec().to_json()))
    facts = overview(folder)
    summary = finalise(folder, spec(), dataset(*keys))
    assert 2 < facts["finished"] < len(lines)  # a value of the right type makes another row
    entries = summary.rows + summary.filtered + summary.failed  # of some the sample has another number
    assert len(keys) <= entries + summary.not_run < len(keys) + 10
    assert summary.not_run > len(lines) / 2
