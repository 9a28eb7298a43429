"""Locks on files, exclusive or shared, between processes and between two users in one process.

The lock is `flock` on a file that exists only to be locked. The kernel releases it when the process ends,
however it ends, so a lock file that was left behind blocks no one. Not promised: fairness among those that
wait, locks across machines, or re-entrance (a second `FileLock` on the same path waits for the first, in the
same process too).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Self

_POLL_S = 0.05


class FileLock:
    """A lock on `path`, whose parent directory must exist. As a context manager it waits until it has the
    lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, *, blocking: bool = True, shared: bool = False) -> bool:
        """Takes the lock, or a share of it. False: `blocking` is off and another holder has it. OSError: the
        file cannot be opened."""
        if self._descriptor is not None:
            raise RuntimeError(f"{self.path} is already locked by this object")
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        acquired = False
        try:
            acquired = lock_descriptor(descriptor, blocking=blocking, shared=shared)
        finally:
            if not acquired:
                os.close(descriptor)
        if acquired:
            self._descriptor = descriptor
        return acquired

    async def wait(self, *, shared: bool = False) -> None:
        """Takes the lock, or a share of it. Whoever is cancelled meanwhile does not have it."""
        while not self.acquire(blocking=False, shared=shared):  # noqa: ASYNC110 (another process has it)
            await asyncio.sleep(_POLL_S)

    def release(self) -> None:
        """Does nothing if the lock is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def lock_descriptor(descriptor: int, *, blocking: bool = True, shared: bool = False) -> bool:
    """Locks an open file or directory until it is closed. False: not `blocking`, and another holder has
    it."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if blocking else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock_descriptor(descriptor: int) -> None:
    """Releases the lock of a descriptor that stays open."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
