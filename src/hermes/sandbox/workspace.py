"""A sandbox's directory on this machine: an existing one, or a fresh one that is removed afterwards."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hermes.disk.files import make_private_dirs
from hermes.disk.trees import remove_tree, walk
from hermes.errors import HostError, UsageError

logger = logging.getLogger(__name__)

WORKSPACE = "/workspace"
"""The path of the workspace inside a sandbox that keeps the host out."""
INNER_ID = 1000
"""User and group id inside a sandbox that keeps the host out."""
UNPRIVILEGED_ID = 59_999
"""Owner of a fresh workspace if Hermes is root, so that commands need not run as root: above the ids of
users, below those that systems assign dynamically."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine that an isolating sandbox has under a name of its own."""

    source: Path
    target: str
    writable: bool


@dataclass(frozen=True, slots=True)
class Workspace:
    path: Path
    fresh: bool
    """True if it was created here and is removed at the end."""
    shown_paths: tuple[str, ...] = ()
    """Further paths of this machine that an isolating sandbox shows, read-only and under the same name."""
    mounts: tuple[Mount, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment of every command, beside what the sandbox sets."""
    folder: Path | None = None
    """The folder a fresh one is part of: its size counts; its maker gives it an owner and removes it."""

    @classmethod
    def existing(cls, path: Path) -> Workspace:
        if not path.is_dir():
            raise UsageError(f"the workspace '{path}' is not a directory.", f"mkdir -p '{path}'")
        return cls(path.resolve(), fresh=False)

    @classmethod
    def create(cls, parent: Path | None = None, name: str | None = None) -> Workspace:
        """An empty directory that only this user can access, under `parent` or the temporary directory.
        With a name, it replaces what a killed process has left of it."""
        try:
            if parent is not None:
                make_private_dirs(parent)
            path = Path(tempfile.mkdtemp(prefix="hermes-", dir=parent))
            if name is not None:
                remove_tree(path.with_name(name))
                path = path.rename(path.with_name(name))
        except OSError as error:
            where = parent or tempfile.gettempdir()
            raise HostError(
                f"no workspace can be created in {where}: {error.strerror}.",
                f"Make room in {where}, or set TMPDIR.",
            ) from error
        return cls(path.resolve(), fresh=True)

    @property
    def owner(self) -> tuple[int, int]:
        """User and group."""
        status = self.path.stat()
        return status.st_uid, status.st_gid

    def drop_root(self) -> None:
        """Makes an unprivileged user the owner of a fresh workspace if Hermes is root."""
        if self.fresh and self.folder is None and os.geteuid() == 0:
            os.chown(self.path, UNPRIVILEGED_ID, UNPRIVILEGED_ID)

    def drop_set_uid(self) -> None:
        """Takes set-uid and set-gid from the files of a workspace that outlives its sandbox."""
        for directory, _, names in walk(self.path):
            for name in names:
                path = directory / name
                with suppress(OSError):
                    mode = path.lstat().st_mode
                    if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                        path.chmod(stat.S_IMODE(mode) & 0o777)

    def remove(self) -> None:
        """Removes a fresh workspace, whatever the permissions of its contents.

        Files that cannot be removed are left: a finished rollout must not fail because of them.
        """
        if self.fresh and self.folder is None and not remove_tree(self.path):
            logger.warning("the workspace %s could not be removed whole", self.path)
