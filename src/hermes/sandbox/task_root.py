"""The directories of a task that works outside of a workspace: /app, /root, /data, with files of its own.

Bubblewrap shows the system of this machine, read-only, and lays no second file system over it. A task root
is a folder of this machine with one subfolder for each top directory that the task may write (`/app` is
`FOLDER/app`), which are mounted into every sandbox of the task. So a second sandbox sees the same files
without anything that ran in the first one. What the task must not write is not in it: whoever opens a sandbox
mounts that from elsewhere.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes.disk.trees import remove_tree, walk
from hermes.errors import HostError
from hermes.sandbox.bwrap_args import host_layout
from hermes.sandbox.workspace import UNPRIVILEGED_ID, Mount, Workspace

USUAL_TOPS = ("/app", "/data", "/home", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var")
"""Top directories that exist in an image and may be written."""
_SKELETON = ("home", "root", "tmp", "var/lib", "var/log", "var/run", "var/tmp")
_WORKSPACE_TOP = "/workspace"
_COPY_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class TaskRoot:
    folder: Path
    tops: tuple[str, ...]
    """Top directories that the task may write."""

    @classmethod
    def create(cls, folder: Path, tops: Iterable[str]) -> TaskRoot:
        """Empty directories. `tops` that this machine's own root has are left out, as `missing_tops` says."""
        own_tops = _shown_tops()
        chosen = tuple(
            sorted({top for top in (*USUAL_TOPS, *tops) if top not in own_tops} | {_WORKSPACE_TOP})
        )
        folder.mkdir(mode=0o711)
        for top in chosen:
            (folder / top[1:]).mkdir()
        for name in _SKELETON:
            if f"/{name.partition('/')[0]}" in chosen:
                (folder / name).mkdir(parents=True, exist_ok=True)
        root = cls(folder, chosen)
        give_to_sandbox(folder)
        return root

    @classmethod
    def opened(cls, folder: Path) -> TaskRoot:
        """One that was created before."""
        with os.scandir(folder) as entries:
            return cls(folder, tuple(sorted(f"/{entry.name}" for entry in entries if entry.is_dir())))

    def copy(self, folder: Path) -> TaskRoot:
        """The same files once more; blocks are shared where the file system can do that."""
        command = ["cp", "-a", "--reflink=auto", "--", str(self.folder), str(folder)]
        ended = subprocess.run(command, capture_output=True, timeout=_COPY_TIMEOUT_S, check=False)
        if ended.returncode:
            remove_tree(folder)
            raise HostError(
                f"a task's files cannot be copied: {ended.stderr.decode('utf-8', 'replace').strip()}"
            )
        return TaskRoot(folder, self.tops)

    def workspace(
        self,
        variables: Mapping[str, str],
        *,
        mounts: Sequence[Mount] = (),
        shown_paths: Sequence[str] = (),
    ) -> Workspace:
        """For a sandbox over these files; `mounts` are laid over them."""
        tops = [Mount(self.folder / top[1:], top, True) for top in self.tops if top != _WORKSPACE_TOP]
        return Workspace(
            self.folder / _WORKSPACE_TOP[1:],
            fresh=True,
            shown_paths=tuple(shown_paths),
            mounts=(*tops, *mounts),
            variables=variables,
            folder=self.folder,
        )

    def remove(self) -> None:
        remove_tree(self.folder)


def _shown_tops() -> frozenset[str]:
    """Top directories that hold a part of this machine, which stays as it is."""
    layout = host_layout(shares_network=False)
    paths = [*layout.binds, *(path for path, _ in layout.links), *layout.files]
    return frozenset(f"/{Path(path).parts[1]}" for path in paths) - {"/tmp"} | {"/proc", "/dev", "/sys"}


def missing_top(path: str) -> str | None:
    """The top directory of this path, if a task cannot write there."""
    parts = Path(path).parts
    top = f"/{parts[1]}" if len(parts) > 1 else "/"
    return top if top == "/" or top in _shown_tops() else None


def copy_for_sandbox(sources: Sequence[Path], target: Path) -> Path:
    """Copies of folders, laid over one another and owned by the sandbox's user; links stay links."""
    for source in sources:
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    give_to_sandbox(target)
    return target


def give_to_sandbox(folder: Path) -> None:
    """Makes the sandbox's user the owner of a folder that no sandbox has had yet, and lets it read all."""
    is_root = os.geteuid() == 0
    for directory, _, names in walk(folder):
        for path in (directory, *(directory / name for name in names)):
            mode = path.lstat().st_mode
            if is_root:
                os.lchown(path, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
            if not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode) & 0o777 | (0o700 if stat.S_ISDIR(mode) else 0o600))
