"""Copies directories into and out of a sandbox, file by file.

File names that a sandbox reports are not trusted: a name that leads out of the target directory is an error,
and only regular files are copied. Sizes are limited by the sandbox's own reads.
"""

from __future__ import annotations

import asyncio
import posixpath
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hermes.errors import SandboxError, UsageError

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


async def receive_dir(sandbox: Sandbox, remote: str, local: Path) -> int:
    """Copies the regular files under `remote`, links not followed; returns how many."""
    listing = await sandbox.run(f"cd -- {shlex.quote(remote)} && find . -type f -print0")
    if listing.exit_code or listing.truncated:
        problem = listing.output.strip()[:300] if listing.exit_code else "it holds too many files"
        raise SandboxError(f"the directory '{remote}' cannot be copied out of the sandbox: {problem}.")
    names = [PurePosixPath(name) for name in listing.output.split("\0") if name]
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            raise SandboxError(f"the sandbox reported a file outside of '{remote}': {str(name)!r}.")
        target = local.joinpath(*name.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        data = await sandbox.read_file(posixpath.join(remote, str(name)))
        await asyncio.to_thread(target.write_bytes, data)
    return len(names)
