"""The sandbox protocol: it runs commands and stores files, with one workspace per rollout.

Paths given to `read_file` and `write_file` are relative to the workspace or absolute inside the sandbox. A
command that exits non-zero is a result; a sandbox that cannot run commands raises `SandboxError`.
Which commands may run is decided elsewhere (safety.approval); what a command can access is decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CommandResult:
    exit_code: int
    """128 + signal for a killed process; 124 for a time-out."""
    output: str
    """stdout and stderr interleaved, undecodable bytes replaced."""
    duration_ms: float
    timed_out: bool = False
    truncated: bool = False
    """True if the output exceeded the limit; the middle is replaced by a note."""


class BackgroundProcess(Protocol):
    """A command that runs while the agent continues."""

    @property
    def id(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def exit_code(self) -> int | None:
        """None while running."""
        ...

    def output(self) -> str:
        """All output so far, bounded like CommandResult.output."""
        ...

    async def write(self, text: str) -> None: ...
    async def wait(self, timeout_s: float) -> int | None: ...
    async def kill(self) -> None:
        """Ends the whole process tree."""
        ...


class Sandbox(Protocol):
    @property
    def backend(self) -> str: ...
    @property
    def isolated(self) -> bool:
        """True if a command cannot reach the host's files, processes, environment or network."""
        ...

    @property
    def workspace(self) -> str:
        """The working directory, as a path inside the sandbox."""
        ...

    async def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> CommandResult:
        """Runs a shell command to its end; at the time-out the whole process tree is killed."""
        ...

    async def start(self, command: str, *, cwd: str | None = None) -> BackgroundProcess: ...
    async def read_file(self, path: str, max_bytes: int | None = None) -> bytes:
        """Raises FileNotFoundError, IsADirectoryError or PermissionError."""
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Creates parent directories; atomic if the back end supports it."""
        ...

    async def kill_all(self) -> None:
        """Ends every process that commands have left running: nothing sees or changes what follows."""
        ...

    async def close(self) -> None:
        """Kills everything that is running and removes a workspace that the sandbox created."""
        ...


async def end_processes(sandbox: Sandbox, background: Iterable[BackgroundProcess]) -> None:
    """Ends everything that a rollout left running: before its files are graded, in every back end."""
    await asyncio.gather(*(process.kill() for process in background))
    kill_all = getattr(sandbox, "kill_all", None)  # a plug-in may be older than this method
    if kill_all is not None:
        await kill_all()
