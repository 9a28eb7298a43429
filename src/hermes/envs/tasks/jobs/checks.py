"""Jobs for a shell: files that lie there, what is to be done, and how the result is looked at.

A job is done if every check holds. Checks read files, and run only what the job asked to be written. No job
is done to begin with, and what must not change is checked as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hermes.core import JSON
from hermes.envs.rewards.result import GraderError, RewardResult


class JobWorkspace(Protocol):
    """Where a job was done."""

    async def text_of(self, path: str) -> str | None:
        """A file's text; None if there is no such regular file."""
        ...

    async def exists(self, path: str) -> bool: ...

    async def output_of(self, command: str) -> str | None:
        """What a command prints; None if it fails."""
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
class MissingTool:
    path: str


@dataclass(frozen=True, slots=True)
class Prints:
    command: str
    text: str


Check = FileIs | JsonIs | MissingTool | Prints


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


async def grade_job(job: TerminalJob, place: JobWorkspace) -> RewardResult:
    """1 if every check holds.

    `progress` is the share of what had to be done: 0 for doing nothing, and for spoiling what was to stay.
    """
    broken = [check for check in job.checks if not await _holds(check, place)]
    before = [check for check in job.checks if not await _holds(check, _Untouched(job.files))]
    if not before:
        raise GraderError(f"the job was done before it began: {job.instruction}")
    spoilt = any(check not in before for check in broken)
    progress = 0.0 if spoilt else 1 - len(broken) / len(before)
    detail = "; ".join(_describe(check) for check in broken[:3])
    return RewardResult(float(not broken), {"progress": progress}, detail)


class _Untouched:
    """The place as the job found it."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    async def text_of(self, path: str) -> str | None:
        return self._files.get(path)

    async def exists(self, path: str) -> bool:
        return path in self._files

    async def output_of(self, command: str) -> str | None:
        return None


async def _holds(check: Check, place: JobWorkspace) -> bool:
    match check:
        case FileIs(path, text):
            found = await place.text_of(path)
            return found is not None and _lines(found) == _lines(text)
        case JsonIs(path, value):
            return bool(_parsed(await place.text_of(path)) == value)
        case MissingTool(path):
            return not await place.exists(path)
        case Prints(command, text):
            printed = await place.output_of(command)
            return printed is not None and _lines(printed) == _lines(text)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _parsed(text: str | None) -> JSON:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _describe(check: Check) -> str:
    match check:
        case FileIs(path) | JsonIs(path):
            return f"{path} is not as it should be"
        case MissingTool(path):
            return f"{path} is still there"
        case Prints(command):
            return f"'{command}' does not print what it should"
