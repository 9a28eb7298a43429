"""Shell jobs: the files of the workspace, the instruction, and the checks of the result.

A job is done if all its checks pass. Checks read files, and run only the script that the job asked for. No
job is done to begin with, and files that must not change are checked as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hermes.core import JSON
from hermes.envs.rewards.result import GraderError, RewardResult


class JobWorkspace(Protocol):
    """The workspace a job was done in, as the checks read it."""

    async def read_text(self, path: str) -> str | None:
        """A file's text; None if there is no such regular file."""
        ...

    async def exists(self, path: str) -> bool: ...

    async def run_command(self, command: str) -> str | None:
        """The command's output; None if it fails."""
        ...


@dataclass(frozen=True, slots=True)
class FileIs:
    path: str
    text: str
    """Compared line by line; white space at the ends of lines and of the file does not count."""


@dataclass(frozen=True, slots=True)
class JsonIs:
    path: str
    value: JSON


@dataclass(frozen=True, slots=True)
class FileAbsent:
    path: str


@dataclass(frozen=True, slots=True)
class Prints:
    command: str
    text: str


Check = FileIs | JsonIs | FileAbsent | Prints


@dataclass(frozen=True, slots=True)
class TerminalJob:
    kind: str
    instruction: str
    files: Mapping[str, str]
    checks: tuple[Check, ...]
    solution: str
    """A shell command that does the job."""
    key: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.kind} {self.instruction} {sorted(self.files.items())}")


async def grade_job(job: TerminalJob, workspace: JobWorkspace) -> RewardResult:
    """1 if all checks pass.

    `progress` is the share of the work that is done: 0 for doing nothing, and for changing what had to stay.
    """
    failing = [check for check in job.checks if not await _passes(check, workspace)]
    initially_failing = [check for check in job.checks if not await _passes(check, _InitialFiles(job.files))]
    if not initially_failing:
        raise GraderError(f"the job was done before it began: {job.instruction}")
    spoilt = any(check not in initially_failing for check in failing)
    progress = 0.0 if spoilt else 1 - len(failing) / len(initially_failing)
    detail = "; ".join(_describe_failure(check) for check in failing[:3])
    return RewardResult(float(not failing), {"progress": progress}, detail)


class _InitialFiles:
    """The workspace before the job."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    async def read_text(self, path: str) -> str | None:
        return self._files.get(path)

    async def exists(self, path: str) -> bool:
        return path in self._files

    async def run_command(self, command: str) -> str | None:
        return None


async def _passes(check: Check, workspace: JobWorkspace) -> bool:
    match check:
        case FileIs(path, text):
            actual = await workspace.read_text(path)
            return actual is not None and _lines(actual) == _lines(text)
        case JsonIs(path, value):
            return bool(_parsed(await workspace.read_text(path)) == value)
        case FileAbsent(path):
            return not await workspace.exists(path)
        case Prints(command, text):
            printed = await workspace.run_command(command)
            return printed is not None and _lines(printed) == _lines(text)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _parsed(text: str | None) -> JSON:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _describe_failure(check: Check) -> str:
    match check:
        case FileIs(path) | JsonIs(path):
            return f"{path} does not have the expected content"
        case FileAbsent(path):
            return f"{path} still exists"
        case Prints(command):
            return f"'{command}' does not print the expected text"
