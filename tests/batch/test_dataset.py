"""Reading tasks: stable keys, good rows kept, bad ones named."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hermes.batch.tasks import Dataset, TaskRow, read_dataset
from hermes.errors import UsageError


def write(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def keys(dataset: Dataset) -> list[str]:
    return [row.key for row in dataset.rows]


def test_equal_prompts_are_different_rows(tmp_path: Path) -> None:
    dataset = read_dataset(
        str(write(tmp_path / "d.jsonl", {"prompt": "a"}, {"prompt": "a"}, {"prompt": "b"}))
    )
    assert len(set(keys(dataset))) == 3


def test_keys_survive_reordering_extension_and_a_mended_bad_line(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n % 4}", "level": n % 2} for n in range(12)]
    first = read_dataset(str(write(tmp_path / "a.jsonl", *rows[:6], "{broken", *rows[6:])))
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    second = read_dataset(str(write(tmp_path / "b.jsonl", {"prompt": "new"}, *shuffled)))
    assert [bad.line for bad in first.bad] == [7]
    assert set(keys(first)) < set(keys(second))
    assert first.digest != second.digest
    third = read_dataset(str(write(tmp_path / "c.jsonl", *shuffled)))
    assert first.digest == third.digest


def test_bad_rows_are_reported_with_line_and_reason_and_cost_no_good_row(tmp_path: Path) -> None:
    dataset = read_dataset(
        str(
            write(
                tmp_path / "d.jsonl",
                {"prompt": "good"},
                "not json",
                {"question": "wrong field"},
                {"prompt": ""},
                {"prompt": 3},
                ["a list"],
                "",
                {"id": "x", "prompt": "one"},
                {"id": "x", "prompt": "two"},
                {"messages": [{"role": "assistant", "content": "ends badly"}]},
                {"prompt": "p", "files": {"a.txt": 3}},
            )
        )
    )
    assert [row.prompts for row in dataset.rows] == [("good",), ("one",)]
    assert [bad.line for bad in dataset.bad] == [2, 3, 4, 5, 6, 9, 10, 11]
    assert "line 8" in dataset.bad[5].reason


def test_everything_a_row_can_say(tmp_path: Path) -> None:
    row = {
        "id": 7,
        "prompt": ["first", "then"],
        "image": "python:3.12",
        "files": {"a/b.txt": "text"},
        "expected": 42,
        "reward": "r.py:score",
        "metadata": {"split": "train"},
        "topic": "sums",
    }
    found = read_dataset(str(write(tmp_path / "d.jsonl", row))).rows[0]
    assert (found.key, found.prompts, found.image, found.expected) == (
        "7",
        ("first", "then"),
        "python:3.12",
        42,
    )
    assert found.metadata == {"split": "train", "topic": "sums"}
    assert found.files == {"a/b.txt": "text"}


def test_messages_become_history_and_a_prompt(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"from": "human", "value": "q"}]
    found = read_dataset(str(write(tmp_path / "d.jsonl", {"messages": messages}))).rows[0]
    assert found.prompts == ("q",)
    assert [message.content for message in found.history] == ["s"]


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
def test_other_file_formats(tmp_path: Path, suffix: str) -> None:
    rows = [{"prompt": "ünïcödé 🙂", "level": "1"}, {"prompt": "two", "level": "2"}]
    path = tmp_path / f"d{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(rows))
    elif suffix == ".csv":
        path.write_text('prompt,level\n"ünïcödé 🙂",1\n"two",2\n', "utf-8")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    dataset = read_dataset(str(path))
    assert [(row.prompts[0], row.metadata["level"]) for row in dataset.rows] == [
        ("ünïcödé 🙂", "1"),
        ("two", "2"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.jsonl", None, "no dataset file"),
        ("empty.jsonl", "", "no usable row"),
        ("bad.jsonl", "{}\n", "line 1"),
        ("bad.json", "{", "not JSON"),
        ("object.json", "{}", "no array"),
        ("data.xlsx", "x", "unknown kind"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_an_error(
    tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=said):
        read_dataset(str(path))


def test_only_the_first_rows_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", *({"prompt": str(n)} for n in range(10)))
    assert len(read_dataset(str(path), max_rows=3).rows) == 3


@pytest.mark.parametrize(
    "changed", [{"cwd": "src"}, {"image": "debian:13"}, {"reward": "f.py:g"}, {"level": 2}]
)
def test_whatever_changes_in_a_row_changes_the_dataset(tmp_path: Path, changed: dict[str, object]) -> None:
    before = read_dataset(str(write(tmp_path / "a.jsonl", {"id": 1, "prompt": "x"})))
    after = read_dataset(str(write(tmp_path / "b.jsonl", {"id": 1, "prompt": "x", **changed})))
    same = read_dataset(str(write(tmp_path / "c.jsonl", {"prompt": "x", "id": 1})))
    assert before.digest != after.digest
    assert before.digest == same.digest


def test_a_value_that_json_cannot_hold_makes_a_bad_row_even_with_an_id(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": "a", "prompt": "x", "blob": b"\0"}, {"id": "b", "prompt": "y", "blob": None}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    dataset = read_dataset(str(tmp_path / "d.parquet"))
    assert [row.key for row in dataset.rows] == ["b"]
    assert [(bad.line, "JSON" in bad.reason) for bad in dataset.bad] == [(1, True)]


def test_a_row_survives_the_way_to_a_worker(tmp_path: Path) -> None:
    path = write(
        tmp_path / "d.jsonl",
        {
            "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u 🙂"}],
            "cwd": "a",
            "files": {"a/b": "c"},
            "expected": [1, None],
            "metadata": {"k": {"deep": True}},
        },
    )
    (row,) = read_dataset(str(path)).rows
    assert TaskRow.from_json(json.loads(json.dumps(row.to_json()))) == row
