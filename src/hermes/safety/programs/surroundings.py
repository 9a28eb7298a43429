"""Where a command runs, and which files it may read there without asking.

Paths are resolved as they are now: a link that leads out of the workspace, a private file
(`safety.private`) and a glob that matches either of them need approval. A process that the agent was allowed
to run could change them between the check and the command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from hermes.safety.private import PrivatePlaces
from hermes.safety.shell import GlobWord

_MAX_MATCHES = 5_000
_MAX_DIRECTORIES = 8
_GLOB = re.compile(r"[*?\[]")
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Surroundings:
    workspace: str | None
    """None: not known; only relative paths are then accepted."""
    places: PrivatePlaces = field(default_factory=PrivatePlaces.of_this_user)
    directories: tuple[str, ...] = ()
    """Where the command may run: the workspace, and where a `cd` before it may have led."""

    def __post_init__(self) -> None:
        if self.workspace is not None and not self.directories:
            object.__setattr__(self, "directories", (self.workspace,))

    def after_cd(self, target: str) -> Surroundings | None:
        """The surroundings of what follows `cd target`; None if there are too many to consider."""
        more = tuple(str(Path(directory, target)) for directory in self.directories)
        directories = tuple(dict.fromkeys((*self.directories, *more)))
        if len(directories) > _MAX_DIRECTORIES:
            return None
        return Surroundings(self.workspace, self.places, directories)

    def permits(self, path: str, *, recursive: bool = False) -> bool:
        """Whether the path, and with `recursive` everything below it, may be read without asking."""
        if path in ("-", "/dev/null"):
            return True
        if not path or path.startswith("~") or ".." in path.split("/"):
            return False
        if self.workspace is None:
            return not path.startswith("/") and not isinstance(path, GlobWord)
        try:
            return all(
                self._permits_file(match, recursive)
                for directory in self.directories
                for match in _matches(directory, path)
            )
        except (OSError, RuntimeError, ValueError):  # too long for a path, a loop of links
            return False

    def runs_trusted(self, program: str) -> bool:
        """Whether the shell finds the program outside the workspace, or finds none."""
        if self.workspace is None:
            return True
        root = Path(self.workspace).resolve()
        for folder in os.environ.get("PATH", _PATH).split(":"):
            if not folder.startswith("/"):
                return False
            candidate = Path(folder, program)
            if os.access(candidate, os.X_OK):
                lies_in = (candidate.parent.resolve(), candidate.resolve())
                return not any(path.is_relative_to(root) for path in lies_in)
        return True

    def _permits_file(self, path: Path | None, recursive: bool) -> bool:
        if path is None or self.workspace is None:
            return False
        root, real = Path(self.workspace).resolve(), path.resolve()
        if not real.is_relative_to(root) or self.places.reason(real, root) is not None:
            return False
        return not (recursive and real.is_dir() and self.places.within(real))


def _matches(directory: str, path: str) -> Iterator[Path | None]:
    """The path, or what a glob matches; None if a match could be an option or lead upwards, and if there are
    too many."""
    if not isinstance(path, GlobWord):
        yield Path(directory, path)
        return
    paths = [Path("/") if path.startswith("/") else Path(directory)]
    for part in (part for part in path.split("/") if part):
        paths = [match for folder in paths for match in _expand(folder, part)]
        if len(paths) > _MAX_MATCHES:
            yield None
            return
    for match in paths:
        relative = os.path.relpath(match, directory)
        yield None if relative.startswith("-") else match
    if _could_climb(path):
        yield None


def _expand(folder: Path, part: str) -> list[Path]:
    if not _GLOB.search(part):
        return [folder / part]
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    exact = "[" not in part  # shells differ in what a bracket means
    return [
        folder / name
        for name in names
        if name.startswith(".") == part.startswith(".") and (not exact or fnmatchcase(name, part))
    ]


def _could_climb(path: str) -> bool:
    """Whether a part may match `..`."""
    return any(part.startswith(".") and _GLOB.search(part) for part in path.split("/"))
