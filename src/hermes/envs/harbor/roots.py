"""Built roots in `HOME/harbor/roots`, and who may remove them.

Each has a lock beside it. Whoever builds or removes the root has it alone, each place of the root has a
share, and the kernel releases what a killed process held.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes.disk.filelock import FileLock
from hermes.disk.trees import remove_tree
from hermes.sandbox.task_root import TaskRoot


@dataclass(frozen=True, slots=True)
class BuiltRoot:
    """A root that is ready to be copied for trials."""

    folder: Path
    workdir: str
    variables: Mapping[str, str]
    lock: FileLock
    """It is shared while the root is in use: places mount its packages."""

    @property
    def root(self) -> TaskRoot:
        return TaskRoot.opened(self.folder / "root")

    @property
    def packages(self) -> Path:
        return self.folder / "packages"


def root_lock(root: Path) -> FileLock:
    return FileLock(root.with_name(f"{root.name}.lock"))


def remove_unfinished(root: Path) -> None:
    """Removes what is left of building it. Only for those who have its lock."""
    for path in root.parent.glob(f"{root.name}.building-*"):
        remove_tree(path)


def remove_root(root: Path) -> bool:
    """Returns whether it is gone. False: there is none, or it is being built or used."""
    lock = root_lock(root)
    if not lock.acquire(blocking=False):
        return False
    try:
        remove_unfinished(root)
        return root.is_dir() and remove_tree(root)
    finally:
        lock.release()


def remove_roots(home: Path) -> int:
    """Removes the roots that nobody uses and counts them. Locks stay: somebody may be waiting for one."""
    folder = home / "harbor" / "roots"
    names = {path.name.partition(".")[0] for path in folder.iterdir()} if folder.is_dir() else set()
    return sum(remove_root(folder / name) for name in sorted(names))
