"""A sandbox seen from one of its directories: that directory is the workspace for whoever uses it.

It is a point of view, not a fence: absolute paths and `..` lead as far as they do in the sandbox itself.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping

from hermes.errors import SandboxError
from hermes.sandbox.base import BackgroundProcess, CommandResult, Sandbox


async def work_in(sandbox: Sandbox, directory: str) -> Sandbox:
    """The sandbox with `directory` as its workspace: a relative one is made, an absolute one must exist."""
    quoted = shlex.quote(directory)
    check = f"test -d {quoted}" if posixpath.isabs(directory) else f"mkdir -p -- {quoted}"
    made = await sandbox.run(check)
    if made.exit_code:
        said = made.output.strip() or "there is no such directory"
        raise SandboxError(
            f"the tools cannot work in '{directory}' of the sandbox: {said}.", "Name another directory."
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
            command, timeout_s=timeout_s, cwd=self._seen_from_here(cwd or ""), env=env, stdin=stdin
        )

    async def start(self, command: str, *, cwd: str | None = None) -> BackgroundProcess:
        return await self._sandbox.start(command, cwd=self._seen_from_here(cwd or ""))

    async def read_file(self, path: str, max_bytes: int | None = None) -> bytes:
        return await self._sandbox.read_file(self._seen_from_here(path), max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._sandbox.write_file(self._seen_from_here(path), data)

    async def close(self) -> None:
        await self._sandbox.close()

    def _seen_from_here(self, path: str) -> str:
        return posixpath.join(self._directory, path)
