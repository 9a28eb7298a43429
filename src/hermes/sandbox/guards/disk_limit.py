"""The disk space of a fresh workspace: commands that go on writing beyond its limit are ended.

While commands run the free space of the disk is looked at twice a second, and the workspace is measured when
it has fallen, or every ten seconds. Above the limit everything that runs is ended, and later commands can
delete files and not write any (RLIMIT_FSIZE), until there is room again. Folders that cannot be looked into
count as all that the disk has lost since the sandbox was opened.

Not promised: exactness (what is written in half a second is written), files that a program has deleted and
still has open, which end with it, and limits in a workspace that was given, which is somebody's own folder.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hermes.errors import SandboxError
from hermes.sandbox.base import CommandResult

_LOOK_S = 0.5
_MEASURE_S = 10.0
_ENTRY_BYTES = 4096
"""An entry of a folder counts as this much at least: empty files fill a disk too."""


class DiskLimit:
    def __init__(
        self, workspace: Path, limit_mb: int | None, end_commands: Callable[[], Awaitable[None]]
    ) -> None:
        """`limit_mb` None: no limit."""
        self._workspace = workspace
        self._limit_mb = limit_mb
        self._end_commands = end_commands
        self._free_at_start = self._free = _free_bytes(workspace)
        self._measured_s = time.monotonic()
        self._size = 0
        self._running = 0
        self._watching: asyncio.Task[None] | None = None
        self.is_full = False

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Looks at the disk before this block and while it runs."""
        self.watch()
        if self._limit_mb is not None:
            await self._look()
        try:
            yield
        finally:
            self._running -= 1

    def watch(self) -> None:
        """As `watched`, until the sandbox is closed."""
        self._running += 1
        if self._watching is None and self._limit_mb is not None:
            self._watching = asyncio.create_task(self._watch())

    def explain(self, result: CommandResult) -> CommandResult:
        """Adds the reason to the output of a command that was ended, or could not write."""
        if not self.is_full or result.exit_code == 0:
            return result
        note = f"[the workspace has reached its limit of {self._limit_mb} MB: delete files to go on]"
        return replace(result, output=f"{result.output}\n{note}\n")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._running:
                await self._look()

    async def _look(self) -> None:
        """Ends the commands if the limit is exceeded, and the workspace is not becoming smaller."""
        assert self._limit_mb is not None
        limit = self._limit_mb << 20
        try:
            fallen = self._free - _free_bytes(self._workspace) > limit // 64
        except FileNotFoundError:  # the sandbox is closed
            return
        if not (fallen or self.is_full or time.monotonic() - self._measured_s > _MEASURE_S):
            return
        before = self._size if self.is_full else 0
        self._size = await asyncio.to_thread(self._measure, None if self.is_full else limit)
        self.is_full = self._size > limit
        if self.is_full and self._size > before:
            with suppress(SandboxError):  # the sandbox has ended, as the next command says
                await self._end_commands()
            self._size = await asyncio.to_thread(self._measure, None)

    def _measure(self, enough: int | None) -> int:
        """The bytes of the workspace, or more than `enough`."""
        self._measured_s, self._free = time.monotonic(), _free_bytes(self._workspace)
        size, waiting, is_hidden = 0, [str(self._workspace)], False
        while waiting and (enough is None or size <= enough):
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        status = entry.stat(follow_symlinks=False)
                        size += max(status.st_blocks * 512 // max(status.st_nlink, 1), _ENTRY_BYTES)
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        if enough is not None and size > enough:
                            break
            except (FileNotFoundError, NotADirectoryError):  # it has just been removed
                continue
            except OSError:
                is_hidden = True
        return max(size, self._free_at_start - self._free) if is_hidden else size


def _free_bytes(path: Path) -> int:
    """Each unused inode counts too, as the least that a file takes."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize + status.f_favail * _ENTRY_BYTES
