"""A sandbox whose workspace is one of its directories.

This only changes relative paths and is no restriction: absolute paths and `..` work as in the sandbox itself.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping

from hermes.errors import SandboxError
from hermes.sandbox.base import BackgroundProcess, CommandResult, Sandbox


async def work_in(sandbox: Sandbox, directory: str) -> Sandbox:
    """The sandbox with `directory` as its workspace: created if relative, must exist if absolute."""
    quoted = shlex.quote(directory)
    check = f"test -d {quoted}" if posixpath.isabs(directory) else f"mkdir -p -- {quoted}"
    result = await sandbox.run(check)
    if result.exit_code:
        reason = result.output.strip() or "there is no such directory"
        raise SandboxError(
            f"the tools cannot work in '{directory}' of the sandbox: {reason}.", "Name another directory."
        )
    return _DirectorySandbox(sandbox, directory)


class _DirectorySandbox:
    def __init__(self, sandbox: Sandbox, directory: str) -> None:
        self._sandbox = sandbox
        self._directory = directory

    @property
    def backend(self) -> str:
        return self._sandbox.backend

    @property
    def isolated(self) -> bool:
        return self._sandbox.isolated

    @property
    def workspace(self) -> str:
        return posixpath.normpath(posixpath.join(self._sandbox.workspace, self._directory))

    async def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> CommandResult:
        return await self._sandbox.run(
            command, timeout_s=timeout_s, cwd=self._in_directory(cwd or ""), env=env, stdin=stdin
        )

    async def start(self, command: str, *, cwd: str | None = None) -> BackgroundProcess:
        return await self._sandbox.start(command, cwd=self._in_directory(cwd or ""))

    async def read_file(self, path: str, max_bytes: int | None = None) -> bytes:
        return await self._sandbox.read_file(self._in_directory(path), max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._sandbox.write_file(self._in_directory(path), data)

    async def kill_all(self) -> None:
        await self._sandbox.kill_all()

    async def close(self) -> None:
        await self._sandbox.close()

    def _in_directory(self, path: str) -> str:
        return posixpath.join(self._directory, path)
