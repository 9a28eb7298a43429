"""The disk under the checkpoints: who owns a root, small files that are whole, folders that take a place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hermes.core.filelock import FileLock
from hermes.errors import HostError


def own(root: Path) -> FileLock:
    """The lock on `root`, held until it is released or the process ends."""
    lock = FileLock(root / ".lock")
    if not lock.acquire(blocking=False):
        raise HostError(
            f"another engine keeps its checkpoints in {root}", "stop it, or choose another --state-dir"
        )
    return lock


def put(draft: Path, place: Path) -> None:
    """Moves a folder to its place; one that is there goes, or stays if that fails."""
    aside = place.with_name(f".{place.name}.old")
    replaces = place.exists()
    if replaces:
        shutil.rmtree(aside, ignore_errors=True)
        place.rename(aside)
    try:
        draft.rename(place)
    except OSError:
        if replaces:
            aside.rename(place)
        raise
    sync(place.parent)
    shutil.rmtree(aside, ignore_errors=True)


def link(source: Path, target: Path) -> None:
    """The same file under another name; a copy of it where the file system knows no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def tidy(place: Path) -> None:
    """Undoes what a killed process had begun."""
    for aside in place.glob(".*.old"):
        original = place / aside.name[1:].removesuffix(".old")
        if original.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(original)
    for part in place.glob(".*.part"):
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
