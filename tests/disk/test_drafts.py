"""Drafts beside a file's place: the ones of living processes stay, those of killed ones are swept."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from pathlib import Path

import pytest

from hermes.disk import drafts


def test_a_draft_is_private_and_takes_its_place(tmp_path: Path) -> None:
    target = tmp_path / "data"
    with drafts.draft_file(target) as draft:
        os.write(draft.handle, b"whole")
        assert draft.path.stat().st_mode & 0o777 == 0o600
        draft.path.replace(target)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert target.read_bytes() == b"whole"


@pytest.mark.parametrize("make", [drafts.draft_file, drafts.draft_folder])
def test_one_at_work_is_not_swept_and_what_it_gives_up_is_gone(tmp_path: Path, make) -> None:
    with pytest.raises(ZeroDivisionError), make(tmp_path / "data") as draft:
        drafts.sweep(tmp_path / "data")
        assert draft.path.exists()
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_what_nobody_holds_is_swept_and_other_names_are_left(tmp_path: Path) -> None:
    (tmp_path / ".data.abcdefgh").write_text("half")
    (tmp_path / ".data.12345678").mkdir()
    (tmp_path / ".data.12345678" / "row").write_text("half")
    (tmp_path / ".data.toml").write_text("mine")
    drafts.sweep(tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == [".data.toml"]


def test_one_that_is_swept_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between making a file and locking it cannot be met by chance: here a sweep fills it."""
    made: list[str] = []
    real = tempfile.mkstemp

    def swept_at_once(prefix: str, dir: Path) -> tuple[int, str]:
        handle, name = real(prefix=prefix, dir=dir)
        made.append(name)
        if len(made) == 1:
            drafts.sweep(tmp_path / "data")
            assert not Path(name).exists()
        return handle, name

    monkeypatch.setattr(tempfile, "mkstemp", swept_at_once)
    with drafts.draft_file(tmp_path / "data") as draft:
        assert draft.path.exists()
        with pytest.raises(BlockingIOError), draft.path.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(made) == 2
    assert not list(tmp_path.iterdir())


def test_a_sweep_at_any_moment_disturbs_no_draft(tmp_path: Path) -> None:
    """Also between the creation of a folder and its lock, when it looks like one that was left."""
    target, ended = tmp_path / "data", threading.Event()

    def keep_sweeping() -> None:
        while not ended.is_set():
            drafts.sweep(target)

    sweeper = threading.Thread(target=keep_sweeping)
    sweeper.start()
    try:
        for _ in range(2000):
            with drafts.draft_folder(target) as draft:
                assert draft.path.is_dir()
            with drafts.draft_file(target) as draft:
                assert draft.path.is_file()
    finally:
        ended.set()
        sweeper.join()
    assert not list(tmp_path.iterdir())
