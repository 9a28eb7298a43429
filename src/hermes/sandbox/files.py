"""Reads and writes a sandbox's files from outside, safe against links and special files in it.

`read_inside` and `write_inside` access the workspace on this machine: links are followed only inside the
workspace, and only regular files are opened, so a FIFO cannot block. `read_with` and `write_with` access all
other files of a sandbox: they run a command there, with the rights of any command.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hermes.errors import SandboxError
from hermes.safety.paths import locate_inside, open_inside
from hermes.sandbox.supervisor import ProcessResult

MAX_READ_BYTES = 1 << 30
"""Limit of a read without `max_bytes`."""
_MISSING, _DIRECTORY, _DENIED = 64, 65, 66
_ERRORS = {_MISSING: errno.ENOENT, _DIRECTORY: errno.EISDIR, _DENIED: errno.EACCES}
_SHELL_FAILED = 126
"""From this exit code on, the shell or its program did not run to its end."""
_READ = f"""
[ -e "$1" ] || exit {_MISSING}
[ -d "$1" ] && exit {_DIRECTORY}
[ -f "$1" ] && [ -r "$1" ] || exit {_DENIED}
exec head -c "$2" "$1"
"""
_WRITE = f"""
[ -d "$1" ] && exit {_DIRECTORY}
temporary="$1.$$.tmp"
{{ mkdir -p "$(dirname "$1")" && cat > "$temporary" && mv -f "$temporary" "$1"; }} 2> /dev/null && exit 0
rm -f "$temporary" 2> /dev/null
exit {_DENIED}
"""

RunArgv = Callable[[Sequence[str], bytes | None, int], Awaitable[ProcessResult]]
"""Runs a program inside the sandbox: its arguments, its input, the bytes of output to keep."""


def read_inside(root: Path, path: str, max_bytes: int | None, alias: str) -> bytes:
    """`alias` is the root's name inside the sandbox."""
    descriptor = open_inside(root, path, os.O_RDONLY | os.O_NONBLOCK, alias=alias)
    with os.fdopen(descriptor, "rb") as stream:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise PermissionError(errno.EACCES, "not a regular file", path)
        return stream.read(MAX_READ_BYTES if max_bytes is None else max_bytes)


def write_inside(
    root: Path, path: str, data: bytes, alias: str, owner: tuple[int, int] | None = None
) -> None:
    """Atomic. An existing file keeps its permissions; a new one belongs to `owner`."""
    with locate_inside(root, path, alias=alias, make_parents=True, owner=owner) as location:
        mode: int | None = None
        with suppress(FileNotFoundError):
            mode = os.stat(location.name, dir_fd=location.directory, follow_symlinks=False).st_mode
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        temporary = f".{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o666, dir_fd=location.directory)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                if mode is not None:
                    os.fchmod(descriptor, stat.S_IMODE(mode))
                if owner:
                    os.fchown(descriptor, *owner)
            os.rename(temporary, location.name, src_dir_fd=location.directory, dst_dir_fd=location.directory)
        except BaseException:
            os.unlink(temporary, dir_fd=location.directory)
            raise


def check_directory(root: Path, path: str, alias: str) -> None:
    """OSError if the path is in the workspace and not a directory; elsewhere the command itself fails."""
    with suppress(PermissionError):
        os.close(open_inside(root, path, os.O_RDONLY | os.O_DIRECTORY, alias=alias))


async def read_with(run: RunArgv, path: str, max_bytes: int | None) -> bytes:
    """`path` is absolute."""
    limit = MAX_READ_BYTES if max_bytes is None else max_bytes
    # The capture keeps half of its size from the head, and only the head is needed.
    result = await run(["/bin/sh", "-c", _READ, "sh", path, str(limit)], None, 2 * limit)
    _check(result, path)
    return result.capture.data


async def write_with(run: RunArgv, path: str, data: bytes) -> None:
    _check(await run(["/bin/sh", "-c", _WRITE, "sh", path], data, 1000), path)


def _check(result: ProcessResult, path: str) -> None:
    if result.exit_code in _ERRORS:
        number = _ERRORS[result.exit_code]
        raise OSError(number, os.strerror(number), path)
    if 0 < result.exit_code < _SHELL_FAILED:  # the file's doing, such as /proc/self/mem: it cannot be read
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)
    if result.exit_code:
        raise SandboxError(f"'{path}' cannot be reached in the sandbox: {result.capture.text().strip()}")
