"""Where exports were written: one line a file in the home, so that a deletion can name the copies.

The log is a help for people. It is not a promise: files that were moved or copied are not in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from hermes.core import clock
from hermes.disk import appendlog

_NAME = "exports.jsonl"
_TEXT = (".jsonl", ".json", ".csv", ".txt")


def log_export(home: Path, files: Iterable[Path]) -> None:
    """Notes the files of one export."""
    now_ms = clock.now_ms()
    lines = [json.dumps({"path": str(path.resolve()), "at_ms": now_ms}) for path in files]
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with appendlog.AppendLog(home / _NAME) as log:
        log.append(lines)


def exports_with(home: Path, ids: Sequence[str]) -> list[str]:
    """The logged files that still exist and may have one of these trajectories."""
    path = home / _NAME
    if not path.exists():
        return []
    logged = dict.fromkeys(json.loads(line)["path"] for line in appendlog.read_lines(path))
    encoded_ids = [name.encode() for name in ids]
    return [name for name in logged if _may_contain(Path(name), encoded_ids)]


def _may_contain(path: Path, ids: Sequence[bytes]) -> bool:
    if not path.is_file():
        return False
    if path.suffix not in _TEXT:
        return True
    with path.open("rb") as file:
        return any(name in line for line in file for name in ids)
