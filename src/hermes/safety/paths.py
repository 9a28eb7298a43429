"""Access to files inside a directory, and to nothing outside it.

`open_inside` walks the path one component at a time from a descriptor of the root, never lets the kernel
follow a link, and follows links itself as long as they stay inside. So a process that replaces directories by
links in the meantime cannot redirect it outside: every step starts from a directory that was reached from the
root. `resolve_inside` returns the path, for display and comparison; a link can change before the path is
used, so use `open_inside` to access a file that others can write to.

Neither checks the kind of file: a FIFO or a device inside the root is accepted.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MAX_PATH_BYTES = 4096
_MAX_LINKS = 40
# O_PATH: walking through a directory does not require permission to list it.
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


def resolve_inside(root: Path, path: str) -> Path:
    """The real path of `path` (relative to root, or absolute); PermissionError if that is not inside root."""
    _check_text(path)
    base = root.resolve()
    try:
        real = (base / path).resolve()
    except RuntimeError as error:  # a loop of links
        raise OSError(errno.ELOOP, "too many symbolic links", path) from error
    if not real.is_relative_to(base):
        raise _outside_error(path)
    return real


def open_inside(root: Path, path: str, flags: int, mode: int = 0o600, *, alias: str | None = None) -> int:
    """A descriptor of a file or directory inside root, opened with `flags`; the caller closes it.

    An absolute path, or a link's absolute target, is relative to `alias`: the path of the root inside the
    sandbox (default: root itself). PermissionError if the path leads outside.
    """
    with locate_inside(root, path, alias=alias) as location:
        if location.name == ".":
            return os.open(".", flags & ~os.O_CREAT | os.O_CLOEXEC, dir_fd=location.directory)
        return os.open(location.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=location.directory)


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """The target of a path: a name in an open directory, which was not a link when it was read."""

    directory: int
    """Descriptor; closed when the `with` block ends."""
    name: str
    """'.' if the path is the directory itself. A file of that name need not exist."""


@contextmanager
def locate_inside(
    root: Path,
    path: str,
    *,
    alias: str | None = None,
    make_parents: bool = False,
    owner: tuple[int, int] | None = None,
) -> Iterator[ResolvedPath]:
    """Walks to the last component. With `make_parents`, missing directories are created on the way.

    `owner` is their user and group (default: those of this process).
    """
    _check_text(path)
    walk = _Walk(root, alias or str(root), make_parents, owner)
    try:
        yield walk.to(path)
    finally:
        walk.close()


class _Walk:
    """One walk: the descriptors from the root down to the current directory."""

    def __init__(self, root: Path, alias: str, make_parents: bool, owner: tuple[int, int] | None) -> None:
        # Links in the root's own path are the caller's choice; O_NOFOLLOW applies below it.
        self._stack = [os.open(root, _DIRECTORY)]
        self._alias = PurePosixPath(alias)
        self._make_parents = make_parents
        self._owner = owner
        self._links = 0

    def close(self) -> None:
        self._pop_to(0)

    def to(self, path: str) -> ResolvedPath:
        pending = self._parts(path, path)
        while pending:
            name = pending.pop()
            if name == "..":
                if len(self._stack) == 1:
                    raise _outside_error(path)
                self._pop_to(len(self._stack) - 1)
                continue
            target = self._link(name)
            if target is not None:
                self._links += 1
                if self._links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, "too many symbolic links", path)
                pending += self._parts(target, path)
            elif pending:
                self._enter(name)
            else:
                return ResolvedPath(self._stack[-1], name)
        return ResolvedPath(self._stack[-1], ".")

    def _parts(self, path: str, requested: str) -> list[str]:
        """The components still to walk, last first. An absolute path starts again at the root."""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/"):
            base = list(self._alias.parts[1:])
            if parts[: len(base)] != base:
                raise _outside_error(requested)
            parts = parts[len(base) :]
            self._pop_to(1)
        if path.endswith("/") and parts and parts[-1] != "..":
            parts.append(".")  # a trailing slash requires a directory
        return parts[::-1]

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self._stack[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # not a link; not there
                return None
            raise

    def _enter(self, name: str) -> None:
        here = self._stack[-1]
        if self._make_parents:
            with suppress(FileExistsError):
                os.mkdir(name, 0o777, dir_fd=here)
                if self._owner:
                    os.chown(name, *self._owner, dir_fd=here, follow_symlinks=False)
        self._stack.append(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=here))

    def _pop_to(self, depth: int) -> None:
        while len(self._stack) > depth:
            os.close(self._stack.pop())


def _check_text(path: str) -> None:
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise OSError(errno.EINVAL, "not a path", path)
    if len(encoded) > MAX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, "path too long", path[:100] + "…")


def _outside_error(path: str) -> PermissionError:
    return PermissionError(errno.EACCES, "outside the directory", path)
