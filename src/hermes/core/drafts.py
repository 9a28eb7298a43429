"""Files and folders written beside their place, until they are whole and take it.

Several processes may write to one place at once, and one that was killed leaves its draft behind. So who
writes a draft holds a lock on it until it is in its place, and `sweep` removes those nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple


class FileDraft(NamedTuple):
    path: Path
    handle: int
    """Open for writing if it is a file; closed by `draft_file` and `draft_folder`, which holds the lock."""


@contextmanager
def draft_file(target: Path) -> Iterator[FileDraft]:
    """An empty file beside the target, with mode 0600; whatever is still there at the end is removed."""
    with _held(lambda: _new_file(target)) as draft:
        try:
            yield draft
        finally:
            draft.path.unlink(missing_ok=True)


@contextmanager
def draft_folder(target: Path) -> Iterator[FileDraft]:
    """An empty folder beside the target, with mode 0700; whatever is still there at the end is removed."""
    with _held(lambda: _new_folder(target)) as draft:
        try:
            yield draft
        finally:
            shutil.rmtree(draft.path, ignore_errors=True)


def sweep(path: Path) -> None:
    """Removes the drafts for this place that killed processes left."""
    target = Path(os.path.realpath(path))
    for left in target.parent.glob(f".{target.name}.????????"):  # the names that tempfile makes
        with suppress(OSError):
            handle = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink()
            finally:
                os.close(handle)


@contextmanager
def _held(new: Callable[[], FileDraft]) -> Iterator[FileDraft]:
    while True:
        draft = new()
        try:
            fcntl.flock(draft.handle, fcntl.LOCK_EX)
            if not draft.path.exists():  # swept between its making and its lock: nobody will see it
                continue
            yield draft
            return
        finally:
            os.close(draft.handle)


def _new_file(target: Path) -> FileDraft:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    return FileDraft(Path(name), handle)


def _new_folder(target: Path) -> FileDraft:
    path = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    return FileDraft(path, os.open(path, os.O_RDONLY))
