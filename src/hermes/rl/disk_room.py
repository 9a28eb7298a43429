"""Whether the disk of a run is full, and whether there is room again.

A process that a full disk ended is not to blame: the run waits for room, and goes on by itself. Its status
may be impossible to write meanwhile, so whoever shows it looks at the disk too.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

_FULL_BYTES = 4 << 20
"""With less room than this nothing of a run can be saved."""
_MORE_BYTES = 32 << 20
"""How much more than at the failure has to be free before the run goes on."""
_ERRORS = ("No space left on device", "Disk quota exceeded", "database or disk is full")


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The disk of a run at the time a process failed on it."""

    folder: Path
    free_bytes: int

    @classmethod
    def if_full(cls, folder: Path, log: str = "") -> DiskRoom | None:
        """None: the disk has room, and the log of the process does not say that it had none."""
        free_bytes = shutil.disk_usage(folder).free
        is_full = free_bytes < _FULL_BYTES or any(error in log for error in _ERRORS)
        return cls(folder, free_bytes) if is_full else None

    def has_room_again(self) -> bool:
        return shutil.disk_usage(self.folder).free >= self.free_bytes + _MORE_BYTES

    def sentence(self) -> str:
        return (
            f"the disk is full ({self.free_bytes / 1e6:.0f} MB were left at {self.folder}): the run waits, "
            f"and goes on by itself when {_MORE_BYTES / 1e6:.0f} MB more are free"
        )
