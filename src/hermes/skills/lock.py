"""The lock file: the hashes of each installed skill's files at installation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from hermes.config.paths import skills_dir
from hermes.core import JSONObject
from hermes.disk.files import atomic_write, read_text
from hermes.errors import ConfigError
from hermes.skills.catalogue import relative_files

LOCK_FILE = ".lock.json"


def hash_files(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}


def read_lock(home: Path) -> dict[str, JSONObject]:
    """Skill name → {source, version, files: {path: sha256}}; empty if no skill was installed."""
    path = skills_dir(home) / LOCK_FILE
    text = read_text(path)
    if text is None:
        return {}
    try:
        data = json.loads(text)
        return {name: {**entry, "files": dict(entry["files"])} for name, entry in data.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is not a skill lock file.", "Move it away and reinstall the skills."
        ) from error


def write_lock(home: Path, lock: Mapping[str, JSONObject]) -> None:
    atomic_write(skills_dir(home) / LOCK_FILE, json.dumps(lock, indent=1, sort_keys=True) + "\n")


def changes(directory: Path, locked: Mapping[str, str]) -> tuple[str, ...]:
    """The differences between the files in `directory` and the installed ones."""
    current = hash_files({name: (directory / name).read_bytes() for name in relative_files(directory)})
    return (
        *(f"{name} was changed" for name in current if name in locked and current[name] != locked[name]),
        *(f"{name} was added" for name in current if name not in locked),
        *(f"{name} is missing" for name in locked if name not in current),
    )
