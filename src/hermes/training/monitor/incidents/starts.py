"""Records in `starts.jsonl` when the trainer of a run was started, from which step, and after what.

A line is appended at every start, also when an engine that was lost is back. A file that cannot be written (a
full disk) is logged and does not stop the run; a line that a kill cut off is left out.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes.core.clock import now_ms
from hermes.disk.files import atomic_write, read_text
from hermes.errors import HermesError

logger = logging.getLogger(__name__)

NAME = "starts.jsonl"
CRASH = "a crash"
"""The process before it was killed, failed, or lost its engine."""


@dataclass(frozen=True, slots=True)
class TrainerStart:
    """One start of a run's trainer."""

    at_ms: int
    step: int
    """The step of the checkpoint that it continued from; 0: the beginning."""
    after: str | None
    """Why the trainer before it ended; None: there was none."""

    @property
    def crashed(self) -> bool:
        return self.after == CRASH


def read_starts(folder: Path) -> list[TrainerStart]:
    """Oldest first; empty: the run is older than the record."""
    starts = []
    for line in (read_text(folder / NAME) or "").splitlines():
        try:
            starts.append(TrainerStart(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return starts


def record_start(folder: Path, step: int, finished: str | None) -> None:
    """`step`: of the last checkpoint. `finished`: why the run had ended, if it had."""
    try:
        starts = read_starts(folder)
        is_first = not starts and step == 0 and finished is None
        start = TrainerStart(now_ms(), step, None if is_first else finished or CRASH)
        lines = [json.dumps(asdict(entry)) for entry in (*starts, start)]
        atomic_write(folder / NAME, "".join(f"{line}\n" for line in lines))
    except HermesError as error:
        logger.warning("%s", error.message)
