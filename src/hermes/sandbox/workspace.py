"""The directory on this machine that a sandbox works in: the user's own, or fresh and removed afterwards."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hermes.errors import HostError, UsageError

UNPRIVILEGED_ID = 59_999
"""Whom root gives a fresh workspace to, so that commands need not run as root: above the ids of people, below
those that systems hand out themselves."""


@dataclass(frozen=True, slots=True)
class Workspace:
    path: Path
    fresh: bool
    """True if it is ours to remove."""

    @classmethod
    def given(cls, path: Path) -> Workspace:
        if not path.is_dir():
            raise UsageError(f"the workspace '{path}' is not a directory.", f"mkdir -p '{path}'")
        return cls(path.resolve(), fresh=False)

    @classmethod
    def make(cls, parent: Path | None = None) -> Workspace:
        """An empty directory that only we can enter, under `parent` or the temporary directory."""
        try:
            if parent is not None:
                parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = tempfile.mkdtemp(prefix="hermes-", dir=parent)
        except OSError as error:
            where = parent or tempfile.gettempdir()
            raise HostError(
                f"no workspace can be made in {where}: {error.strerror}.",
                f"Make room in {where}, or set TMPDIR.",
            ) from error
        return cls(Path(path).resolve(), fresh=True)

    @property
    def owner(self) -> tuple[int, int]:
        """User and group."""
        found = self.path.stat()
        return found.st_uid, found.st_gid

    def give_up_root(self) -> None:
        """Hands a fresh workspace of root's to a user who may do nothing else."""
        if self.fresh and os.geteuid() == 0:
            os.chown(self.path, UNPRIVILEGED_ID, UNPRIVILEGED_ID)

    def remove(self) -> None:
        """Removes a fresh workspace, whatever permissions its contents were given.

        What still cannot be removed stays: that is not worth failing a finished rollout for.
        """
        if not self.fresh:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():
            _permit(self.path)
            shutil.rmtree(self.path, ignore_errors=True)


def _permit(top: Path) -> None:
    with suppress(OSError):
        top.chmod(stat.S_IRWXU)
        for directory, names, _ in os.walk(top):
            for name in names:
                path = Path(directory, name)
                if not path.is_symlink():
                    path.chmod(stat.S_IRWXU)
