"""A control group that limits the memory of everything that the commands of one sandbox use together.

Limits of a process do not count shared memory, memfd and files in /tmp, nor the sum over processes; a control
group counts all of them. One is made where this user may: in version 2 beside or below the group of this
process, where the memory controller is delegated (`systemd-run --user --scope hermes …`, or root), in version
1 below it. Elsewhere there is none, and `missing_reason` says why.

Only the commands enter the group, not their keeper: a policy that fills its memory loses its own processes.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath

from hermes.errors import SandboxError

_PREFIX = "hermes-sandbox-"
_REMOVE_TIMEOUT_S = 5.0
_numbers = count()


@dataclass(frozen=True, slots=True)
class GroupParent:
    """A group in which a group with a memory limit may be possible."""

    path: Path
    version: int


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    path: Path
    entrance: int
    """Open descriptor of `cgroup.procs`: a process that writes 0 to it enters the group."""

    def remove(self) -> None:
        """Closes the entrance and removes the group, once its last process has ended."""
        os.close(self.entrance)
        deadline = time.monotonic() + _REMOVE_TIMEOUT_S
        while True:
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise SandboxError(
                        f"the control group {self.path} cannot be removed: {error}."
                    ) from error
                time.sleep(0.01)
            else:
                return


def create_memory_group(limit_bytes: int) -> MemoryGroup | None:
    """A group with this limit, or None where none can be made."""
    for parent in _own_parents():
        if not _delegates_memory(parent):
            continue
        _remove_stale(parent.path)
        path = parent.path / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        try:
            path.mkdir()
        except OSError:  # not ours to change; the next one may be
            continue
        try:
            _set_limit(path, parent.version, limit_bytes)
            return MemoryGroup(path, os.open(path / "cgroup.procs", os.O_WRONLY))
        except OSError:
            with suppress(OSError):
                path.rmdir()
    return None


def missing_reason() -> str | None:
    """None if a group can be made here, else why not."""
    group = create_memory_group(64 << 20)
    if group is not None:
        group.remove()
        return None
    parents = ", ".join(str(parent.path) for parent in _own_parents())
    return f"no control group with a memory limit can be made in {parents or '/sys/fs/cgroup'}"


def group_parents(mountinfo: str, membership: str) -> list[GroupParent]:
    """Where to try, best first, from the texts of /proc/self/mountinfo and /proc/self/cgroup."""
    mounts = _mounts(mountinfo)
    parents: list[GroupParent] = []
    for line in membership.splitlines():
        _, controllers, group = line.split(":", 2)
        version = 2 if controllers == "" else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        mount = mounts.get("" if version == 2 else "memory")
        if mount is None or not PurePosixPath(group).is_relative_to(mount[0]):
            continue
        group_folder = mount[1] / PurePosixPath(group).relative_to(mount[0])
        # A group of version 2 that has processes cannot give controllers to groups below it.
        folders = [group_folder]
        if version == 2 and group_folder != mount[1]:
            folders.append(group_folder.parent)
        parents += [GroupParent(folder, version) for folder in folders]
    return sorted(parents, key=lambda parent: -parent.version)


def _mounts(mountinfo: str) -> dict[str, tuple[str, Path]]:
    """Root and mount point of the memory hierarchy of version 1, and of version 2 under the empty name."""
    mounts: dict[str, tuple[str, Path]] = {}
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields, (kind, _, options) = head.split(), tail.split(" ", 2)
        if kind == "cgroup2":
            mounts[""] = (fields[3], Path(fields[4]))
        elif kind == "cgroup" and "memory" in options.split(","):
            mounts["memory"] = (fields[3], Path(fields[4]))
    return mounts


def _own_parents() -> list[GroupParent]:
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text()
        return group_parents(mountinfo, Path("/proc/self/cgroup").read_text())
    except FileNotFoundError:  # no Linux, or no control groups
        return []


def _delegates_memory(parent: GroupParent) -> bool:
    if parent.version == 1:
        return True
    try:
        return "memory" in (parent.path / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _set_limit(path: Path, version: int, limit_bytes: int) -> None:
    limit, swap = (
        ("memory.max", "memory.swap.max")
        if version == 2
        else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    )
    (path / limit).write_text(str(limit_bytes))
    if (path / swap).exists():
        (path / swap).write_text("0" if version == 2 else str(limit_bytes))


def _remove_stale(parent: Path) -> None:
    """Removes the groups of processes that ended without doing so; those that are in use stay."""
    for path in parent.glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            with suppress(OSError):  # another process of ours removed it, or its last process is ending
                path.rmdir()
