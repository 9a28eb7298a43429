"""Every file that a stranger may hand us, damaged in many ways, given to its reader.

A reader accepts it or refuses it with one sentence; nothing hangs, nothing grows without bound, no other
exception escapes. Files are read in a forked child with limits on processor time and memory for each.
"""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path

import pytest

from hermes.cli.chat.inputs import compose
from hermes.cli.chat.options import read_schema
from hermes.cli.chat.query import schema_problem
from hermes.data.importing import import_files
from hermes.errors import UsageError
from hermes.store import Reader, Writer
from tests.security.strangers_files import (
    DAMAGES,
    ESCAPED,
    KINDS,
    MEGABYTE,
    FileKind,
    adapter,
    adapter_rank,
    adapter_tar,
    batch_journal,
    chosen,
    database,
    dataset,
    imported,
    model_config,
    packed_session,
    place,
    read_limited,
    rows,
    sample_jsonl,
    tokenizer,
    variables,
    weights,
    weights_index,
)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_damage_escapes_a_reader(kind: FileKind, tmp_path: Path) -> None:
    if kind.read in (weights, weights_index, adapter, adapter_rank):
        import torch  # noqa: F401 - before the fork, so that no child has to
    if kind.read in (tokenizer, model_config, chosen):
        import transformers  # noqa: F401

        import hermes.engine.model.config
        import hermes.training.data.sft_examples  # noqa: F401
    if "parquet" in kind.name:
        import pyarrow.parquet  # noqa: F401
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    paths = [place(tmp_path / "whole", kind)]
    for number, damage in enumerate(DAMAGES.values()):
        paths.append(place(tmp_path / str(number), kind))
        paths[-1].write_bytes(damage(paths[-1].read_bytes(), rng))
    whole, *messages = read_limited(kind.read, paths)
    assert whole == "", "the sample is read"
    named = dict(zip(DAMAGES, messages, strict=True))
    assert {name: text for name, text in named.items() if text.startswith(ESCAPED)} == {}
    assert {name: text for name, text in named.items() if "\n" in text.strip()} == {}, "several lines"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_no_special_file_holds_a_reader_up(kind: FileKind, tmp_path: Path) -> None:
    if kind.read in (variables, adapter_tar, batch_journal):
        pytest.skip("it gets a file that we wrote ourselves")
    paths = []
    for number, make in enumerate((lambda path: path.mkdir(), lambda path: path.symlink_to(path.name))):
        paths.append(place(tmp_path / str(number), kind))
        paths[-1].unlink()
        make(paths[-1])
    assert [text for text in read_limited(kind.read, paths) if text.startswith(ESCAPED)] == []


def test_pipes_and_devices_in_a_folder_are_left_out_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    sample_jsonl(folder / "good.jsonl")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "zero.jsonl").symlink_to("/dev/zero")
    (folder / "random.json").symlink_to("/dev/urandom")
    assert not read_limited(imported, [folder])[0].startswith(ESCAPED)
    db = tmp_path / "hermes.db"
    with Writer(db) as writer, Reader(db) as reader:
        result = import_files([folder], reader, writer)
    assert result.rows == 20
    assert {Path(problem.file).name for problem in result.problems} == {
        "pipe.jsonl",
        "zero.jsonl",
        "random.json",
    }


def test_a_parquet_cell_that_is_no_json_costs_its_row_and_no_other(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = [{**row, "metadata": "{" if n == 7 else "{}"} for n, row in enumerate(rows())]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "rows.parquet")
    db = tmp_path / "hermes.db"
    with Writer(db) as writer, Reader(db) as reader:
        result = import_files([tmp_path / "rows.parquet"], reader, writer)
    assert result.rows == 19
    assert [(problem.line, "metadata" in problem.why) for problem in result.problems] == [(8, True)]


def test_a_parquet_file_that_becomes_far_larger_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"prompt": pyarrow.array(["x" * 1000]).take(pyarrow.array([0] * 400_000))})
    path = tmp_path / "tasks.parquet"
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < MEGABYTE
    assert "becomes" in read_limited(dataset, [path])[0]


def test_databases_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "hermes.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE trajectories (a)")
    connection.execute("PRAGMA user_version = 4")
    connection.commit()
    connection.close()
    assert "damaged" in read_limited(database, [path])[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"$ref": "http://127.0.0.1:9/schema"}', "cannot be resolved"),
        ('{"$ref": "file:///etc/passwd"}', "cannot be resolved"),
        ('{"$ref": "#"}', "refers to itself without end"),
        ('{"$ref": "#/$defs/none"}', "cannot be resolved"),
        ('{"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}}', "without end"),
    ],
)
def test_a_schema_that_cannot_be_applied_is_one_sentence_and_no_download(text: str, words: str) -> None:
    found = read_schema(text)
    assert found is not None
    problem = schema_problem('{"a": 1}', found)
    assert problem is not None and words in problem


def test_an_answer_without_end_is_no_traceback() -> None:
    assert "nested too deeply" in (schema_problem("[" * 100_000, {"type": "array"}) or "")


def test_a_device_is_no_part_of_a_question() -> None:
    with pytest.raises(UsageError, match="more than 1,000,000 bytes"):
        compose("", [Path("/dev/zero")], "")
    with pytest.raises(UsageError, match="more than 1,000,000 bytes"):
        read_schema("/dev/zero")


def test_a_packed_session_that_becomes_far_larger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl.zst"
    path.write_bytes(DAMAGES["a zstd bomb"](b"", random.Random(0)))
    assert path.stat().st_size < MEGABYTE
    assert "unpacks to more than 256 MiB" in str(packed_session(path))
