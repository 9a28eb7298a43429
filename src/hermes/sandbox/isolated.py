"""The sandboxes that keep the host out share this: the workspace under its name inside, and its files.

Files in the workspace are read and written from outside, safely (`files`); all others by a command inside.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes.sandbox.files import check_directory, read_inside, read_with, write_inside, write_with
from hermes.sandbox.guards import git_guard
from hermes.sandbox.guards.disk_limit import DiskLimit
from hermes.sandbox.supervisor import ProcessResult
from hermes.sandbox.workspace import WORKSPACE, Workspace

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings


class IsolatedSandbox(ABC):
    isolated = True
    workspace = WORKSPACE

    def __init__(self, settings: SandboxSettings, workspace: Workspace) -> None:
        self._settings = settings
        self._workspace = workspace
        self._owner = workspace.owner
        limit_mb = settings.disk_mb if workspace.fresh else None
        self._disk = DiskLimit(workspace.folder or workspace.path, limit_mb, self.kill_all)
        self._repositories = () if workspace.fresh else git_guard.repositories(workspace.path)

    async def read_file(self, path: str, max_bytes: int | None = None) -> bytes:
        try:
            return await asyncio.to_thread(read_inside, self._workspace.path, path, max_bytes, WORKSPACE)
        except PermissionError:  # outside the workspace, perhaps through a link: a command may read it
            return await read_with(self._run_argv, posixpath.join(WORKSPACE, path), max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        if not self._workspace.fresh:
            git_guard.refuse_metadata(self._workspace.path, path, WORKSPACE)
        owner = self._owner if os.geteuid() == 0 else None
        try:
            await asyncio.to_thread(write_inside, self._workspace.path, path, data, WORKSPACE, owner)
        except PermissionError:
            await write_with(self._run_argv, posixpath.join(WORKSPACE, path), data)

    async def _directory(self, cwd: str | None) -> str:
        """Where a command runs; OSError if that is in the workspace and no directory."""
        if cwd is None:
            return WORKSPACE
        await asyncio.to_thread(check_directory, self._workspace.path, cwd, WORKSPACE)
        return posixpath.join(WORKSPACE, cwd)

    def _limit_s(self, timeout_s: float | None) -> float:
        return self._settings.command_timeout_s if timeout_s is None else timeout_s

    async def _leave_workspace(self) -> None:
        """After the last command."""
        await self._disk.close()
        if not self._workspace.fresh:
            await asyncio.to_thread(git_guard.neutralise_new, self._workspace.path, self._repositories)
        await asyncio.to_thread(self._workspace.remove)

    @abstractmethod
    async def kill_all(self) -> None:
        """Ends everything that runs."""

    @abstractmethod
    async def _run_argv(
        self, argv: Sequence[str], stdin: bytes | None, max_output_bytes: int
    ) -> ProcessResult:
        """Runs a program inside."""
