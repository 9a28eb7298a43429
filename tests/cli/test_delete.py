"""Deleting a batch run, a policy, a rating queue and an export: asked first, and only what was named."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from hermes.config.paths import db_path
from hermes.core import Boundary, Message, Outcome, Relation, StopReason
from hermes.errors import UsageError
from hermes.store import Filter, Reader, Writer
from hermes.training.policy_registry import BASE_ID, PolicyRecord, PolicyRegistry
from tests import records
from tests.batch.drive import command, solve, start, write_tasks
from tests.cli.process import failure, hermes
from tests.fakes.provider import FakeProvider, held
from tests.waiting import wait_until


def refuse(home: Path, *arguments: str) -> None:
    done = hermes(home, *arguments)
    assert done.returncode == 2 and "it was not confirmed" in done.stderr, done.stderr


def test_a_batch_run_goes_and_files_of_others_and_trajectories_stay(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    arguments = ("batch", "delete", "run", "--output-dir", str(tmp_path / "data"))
    go = threading.Event()
    with FakeProvider(lambda body: held(go, solve(body))) as provider:
        process = start(tmp_path, *command(tmp_path, provider))
        wait_until(lambda: bool(provider.posts))
        error, _ = failure(hermes(tmp_path, *arguments, "--yes", "--json"), 2)
        assert "is in use by process" in error
        go.set()
        process.communicate(timeout=60)
        (tmp_path / "data/run/notes.txt").write_text("mine")
        refuse(tmp_path, *arguments)
        done = hermes(tmp_path, *arguments, "--yes")
        assert done.returncode == 0 and "keeps notes.txt" in done.stdout, done.stderr
        assert [path.name for path in (tmp_path / "data/run").iterdir()] == ["notes.txt"]
        again = hermes(tmp_path, *command(tmp_path, provider))
        assert again.returncode == 0 and len(provider.posts) == 12, "a deleted run has no record to continue"
    (tmp_path / "data/run/notes.txt").unlink()
    assert hermes(tmp_path, *arguments, "--yes").returncode == 0
    assert not (tmp_path / "data/run").exists()
    with Reader(db_path(tmp_path)) as reader:
        assert reader.count(Filter(run_id="run")) == 6


def test_a_policy_goes_with_its_files_unless_it_is_current(tmp_path: Path) -> None:
    registry = PolicyRegistry(tmp_path)
    for name in ("01AAAA", "01BBBB", "01CCCC"):
        registry.add(PolicyRecord(name, "hermes/smollm2", f"tinker://{name}", None))
        registry.promote(name, "by hand")
        (registry.folder / name).mkdir()
    assert (
        "answers as the current policy"
        in failure(hermes(tmp_path, "policy", "delete", "01CCCC", "--yes", "--json"), 2)[0]
    )
    refuse(tmp_path, "policy", "delete", "01BBBB")
    assert hermes(tmp_path, "policy", "delete", "01BBBB", "--yes").returncode == 0
    assert [record.id for record in registry.policies()] == ["01AAAA", "01CCCC"]
    assert not (registry.folder / "01BBBB").exists()
    assert registry.rollback().id == "01AAAA", "what was deleted is no target"
    assert registry.rollback().id == BASE_ID
    with pytest.raises(UsageError, match="matches no policy"):
        registry.find("01BBBB")


def test_a_queue_goes_and_its_ratings_stay(tmp_path: Path) -> None:
    with Writer(db_path(tmp_path)) as writer:
        for number in range(4):
            records.record(writer, records.conversation(f"Question {number}?"))
    assert hermes(tmp_path, "rate", "queue", "mine", "--make").returncode == 0
    assert hermes(tmp_path, "rate", "last", "good").returncode == 0
    refuse(tmp_path, "rate", "queue", "mine", "--delete")
    assert hermes(tmp_path, "rate", "queue", "mine", "--delete", "--yes").returncode == 0
    assert json.loads(hermes(tmp_path, "rate", "queue", "--list", "--json").stdout) == []
    assert (
        "there is no queue" in failure(hermes(tmp_path, "rate", "queue", "mine", "--delete", "--yes"), 2)[0]
    )
    with Reader(db_path(tmp_path)) as reader:
        assert len(list(reader.all_ratings())) == 1
    assert hermes(tmp_path, "rate", "queue", "mine", "--make").returncode == 0, "the name is free again"


@pytest.mark.parametrize("form", ["sharegpt", "sts"])
def test_an_export_goes_with_all_its_files_and_no_other(tmp_path: Path, form: str) -> None:
    with Writer(db_path(tmp_path)) as writer:
        records.record(writer, records.conversation("Q"))
    folder = tmp_path / "out"
    for name in ("one", "two"):
        output = str(folder / (name if form == "sts" else f"{name}.jsonl"))
        assert hermes(tmp_path, "export", "--format", form, "--output", output).returncode == 0
    before = {path.name for path in folder.iterdir()}
    first = str(folder / ("one" if form == "sts" else "one.jsonl"))
    refuse(tmp_path, "export", "--output", first, "--delete")
    assert {path.name for path in folder.iterdir()} == before
    done = hermes(tmp_path, "export", "--output", first, "--delete", "--yes")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {name for name in before if name.startswith("two")}
    assert (
        "there is no export"
        in failure(hermes(tmp_path, "export", "--output", first, "--delete", "--yes"), 2)[0]
    )


def test_a_filter_selects_whatever_matches_but_what_is_being_recorded(tmp_path: Path) -> None:
    """Also a question that was never answered, and a compressed version: they have the same text."""
    with Writer(db_path(tmp_path)) as writer:
        whole = records.record(writer, records.conversation("Confess?"))
        records.record(
            writer, records.conversation("Confess?"), parent_id=whole, relation=Relation.COMPRESSED
        )
        records.record(
            writer, [Message.user("Confess?")], outcome=Outcome(StopReason.ERROR, Boundary.PROVIDER)
        )
        running = records.record(writer, [Message.user("Confess?")], outcome=None)
        done = hermes(tmp_path, "trajectories", "delete", "--text", "Confess", "--yes", "--json")
        assert json.loads(done.stdout)["deleted"]["trajectories"] == 3, done.stderr
        with Reader(db_path(tmp_path)) as reader:
            assert [trajectory.header.id for trajectory in reader.trajectories()] == [running]
