"""The newest start of a run, `journal/start.json`: how many samples it has, when it began, in which process.

A record for people who look at a run from outside (`hermes batch status`): the run itself never reads it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes.core.clock import now_ms
from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.store import owner

_FOLDER, _NAME = "journal", "start.json"


@dataclass(frozen=True, slots=True)
class StartRecord:
    total: int
    """Samples of the whole plan."""
    finished_before: int
    """Samples that earlier starts had finished."""
    started_at_ms: int
    process: str
    """As `store.owner` writes it."""

    @property
    def running(self) -> bool:
        return owner.is_alive(self.process)


def write_start(folder: Path, total: int, finished_before: int) -> None:
    """Notes that this process runs the samples now."""
    record = StartRecord(total, finished_before, now_ms(), owner.this_process())
    ensure_dir(folder / _FOLDER)
    atomic_write(folder / _FOLDER / _NAME, json.dumps(asdict(record)) + "\n")


def read_start(folder: Path) -> StartRecord | None:
    """The newest start; None for a run that has none, or one that cannot be read."""
    text = read_text(folder / _FOLDER / _NAME)
    try:
        return None if text is None else StartRecord(**json.loads(text))
    except (ValueError, TypeError):
        return None
