"""File operations of the checkpoint store: the lock of a root, and atomic writes of files and folders."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes.disk.filelock import FileLock
from hermes.errors import HostError


def lock_root(root: Path) -> FileLock:
    """Locks the root until the lock is released or the process ends. HostError: it is locked already."""
    lock = FileLock(root / ".lock")
    if not lock.acquire(blocking=False):
        raise HostError(
            f"another engine keeps its checkpoints in {root}", "stop it, or choose another --state-dir"
        )
    return lock


def replace_folder(draft: Path, folder: Path) -> None:
    """Renames `draft` to `folder`. An existing folder is deleted, or restored if the rename fails."""
    aside = folder.with_name(f".{folder.name}.old")
    replaces = folder.exists()
    if replaces:
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    try:
        draft.rename(folder)
    except OSError:
        if replaces:
            aside.rename(folder)
        raise
    sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def link(source: Path, target: Path) -> None:
    """A hard link to the file, or a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def recover(folder: Path) -> None:
    """Completes or undoes the operations in `folder` that a killed process had started."""
    for aside in folder.glob(".*.old"):
        original = folder / aside.name[1:].removesuffix(".old")
        if original.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(original)
    for part in folder.glob(".*.part"):
        shutil.rmtree(part)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(value) + "\n", encoding="utf-8")
    sync(part)
    part.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
