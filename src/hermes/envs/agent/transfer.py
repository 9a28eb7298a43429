"""Copies directories into and out of a sandbox, file by file.

File names that a sandbox reports are not trusted: a name that leads out of the target directory is an error,
and only regular files are copied. What comes out of a sandbox has a limit in bytes.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.sandbox.base import Sandbox


async def send_dir(sandbox: Sandbox, local: Path, remote: str) -> int:
    """Copies the regular files under `local`; returns how many."""
    if not local.is_dir():
        raise UsageError(f"'{local}' is not a directory.", "Give a directory on this machine.")
    files = sorted(path for path in local.rglob("*") if path.is_file() and not path.is_symlink())
    for path in files:
        target = posixpath.join(remote, path.relative_to(local).as_posix())
        await sandbox.write_file(target, await asyncio.to_thread(path.read_bytes))
    return len(files)


async def receive_dir(sandbox: Sandbox, remote: str, local: Path, max_bytes: int) -> int:
    """Copies the regular files under `remote`, links not followed; returns how many.

    Raises OSError for what a policy can cause: no such directory, too many files, over `max_bytes` in all.
    """
    listing = await sandbox.run(f"cd -- {shlex.quote(remote)} && find . -type f -print0")
    if listing.exit_code:
        raise OSError(errno.ENOENT, listing.output.strip()[:300], remote)
    if listing.truncated:
        raise OSError(errno.EFBIG, "it holds too many files", remote)
    names = [PurePosixPath(name) for name in listing.output.split("\0") if name]
    left_bytes = max_bytes
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            raise OSError(errno.EINVAL, f"it lists a file outside: {str(name)!r}", remote)
        data = await sandbox.read_file(posixpath.join(remote, str(name)), left_bytes + 1)
        left_bytes -= len(data)
        if left_bytes < 0:
            raise OSError(errno.EFBIG, f"it holds more than {max_bytes} bytes", remote)
        target = local.joinpath(*name.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, data)
    return len(names)
