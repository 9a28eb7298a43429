"""The newest start of a run: `start.json` says how many samples it has, when it began and in which process.

A record for people who look at a run from outside (`hermes batch status`): the run itself never reads it.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes.disk.files import atomic_write, read_text
from hermes.store import owner

_NAME = "start.json"


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
    record = StartRecord(total, finished_before, time.time_ns() // 1_000_000, owner.this_process())
    atomic_write(folder / _NAME, json.dumps(asdict(record)) + "\n")


def read_start(folder: Path) -> StartRecord | None:
    """The newest start; None for a run that has none, or one that cannot be read."""
    text = read_text(folder / _NAME)
    try:
        return None if text is None else StartRecord(**json.loads(text))
    except (ValueError, TypeError):
        return None
