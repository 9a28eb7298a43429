"""One process carries out a run at a time: two would pay for every sample twice.

The lock ends with the process that holds it, however it ends. The lock file names that process, for the
message to the one that comes second.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.disk.filelock import FileLock
from hermes.disk.files import ensure_dir, read_text
from hermes.errors import ConfigError, UsageError


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Holds the run in `folder` until the block ends; UsageError if another process has it."""
    path = folder / "journal" / "lock"
    lock = FileLock(path)
    try:
        ensure_dir(path.parent)
        if not lock.acquire(blocking=False):
            raise UsageError(
                f"the run in {folder} is in use by {_holder(path)}",
                f"watch it: hermes batch status {folder.name} --output-dir {folder.parent}; "
                "once that process has ended, the same command continues the run",
            )
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since_s": int(time.time())}
        path.write_text(json.dumps(holder))
    except (ConfigError, OSError) as error:
        lock.release()
        message = (
            error.message if isinstance(error, ConfigError) else f"cannot write {path}: {error.strerror}"
        )
        hint = "choose another --output-dir, or free space and make that one writable"
        raise UsageError(message, hint) from error
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        facts = json.loads(read_text(path) or "")
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["since_s"]))
        return f"process {facts['pid']} on {facts['host']} since {since}"
    except (ValueError, KeyError, TypeError):  # it has the lock and has not written its name yet
        return "another process"
