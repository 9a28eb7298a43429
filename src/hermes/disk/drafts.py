"""Files and directories that are written beside their target and renamed to it once they are complete.

Several processes may write to one target at once, and a process that is killed leaves its draft behind. So a
draft is locked until it has been renamed, and `sweep` removes those that no process has locked.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hermes.disk.filelock import lock_descriptor


class FileDraft(NamedTuple):
    path: Path
    handle: int
    """Open for writing if the draft is a file. It holds the lock; `draft_file` and `draft_folder` close
    it."""


@contextmanager
def draft_file(target: Path) -> Iterator[FileDraft]:
    """An empty file beside the target, with mode 0600; removed at the end unless it was renamed."""
    with _locked_draft(lambda: _new_file(target)) as draft:
        try:
            yield draft
        finally:
            draft.path.unlink(missing_ok=True)


@contextmanager
def draft_folder(target: Path) -> Iterator[FileDraft]:
    """An empty directory beside the target, with mode 0700; removed at the end unless it was renamed."""
    with _locked_draft(lambda: _new_folder(target)) as draft:
        try:
            yield draft
        finally:
            shutil.rmtree(draft.path, ignore_errors=True)


def sweep(path: Path) -> None:
    """Removes the drafts of this target that killed processes left."""
    target = Path(os.path.realpath(path))
    for draft in target.parent.glob(f".{target.name}.????????"):  # the names that tempfile makes
        with suppress(OSError):
            handle = os.open(draft, os.O_RDONLY)
            try:
                if not lock_descriptor(handle, blocking=False):
                    continue
                if draft.is_dir():
                    shutil.rmtree(draft, ignore_errors=True)
                else:
                    draft.unlink()
            finally:
                os.close(handle)


@contextmanager
def _locked_draft(create: Callable[[], FileDraft]) -> Iterator[FileDraft]:
    while True:
        draft = create()
        try:
            lock_descriptor(draft.handle)
            if not draft.path.exists():  # swept between its creation and its lock
                continue
            yield draft
            return
        finally:
            os.close(draft.handle)


def _new_file(target: Path) -> FileDraft:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    return FileDraft(Path(name), handle)


def _new_folder(target: Path) -> FileDraft:
    while True:
        path = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        with suppress(FileNotFoundError):  # swept before it could be opened
            return FileDraft(path, os.open(path, os.O_RDONLY))
