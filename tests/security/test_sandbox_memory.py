"""The memory of a sandbox is limited as a whole where a control group can be made; elsewhere that is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.sandbox import open_sandbox
from hermes.sandbox.guards import memory_group
from hermes.sandbox.guards.memory_group import create_memory_group, group_parents, missing_reason
from hermes.sandbox.open import sandbox_checks, unusable_reason

SETTINGS = SandboxSettings(backend="bubblewrap", memory_mb=128)
needs_bubblewrap = pytest.mark.skipif(
    unusable_reason("bubblewrap") is not None, reason="bubblewrap does not work here"
)
SYSTEMD = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "35 30 0:30 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def test_a_scope_of_systemd_makes_groups_beside_itself() -> None:
    scope = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"
    own, beside = group_parents(SYSTEMD, f"0::{scope}\n")
    assert (str(own.path), own.version) == (f"/sys/fs/cgroup{scope}", 2)
    assert beside.path == own.path.parent


def test_version_two_is_tried_before_version_one() -> None:
    parents = group_parents(HYBRID, "9:name=systemd:/\n4:memory:/box/run\n0::/\n")
    assert [(str(parent.path), parent.version) for parent in parents] == [
        ("/sys/fs/cgroup/unified", 2),
        ("/sys/fs/cgroup/memory/run", 1),
    ]
    assert group_parents(HYBRID, "4:memory:/elsewhere\n") == []


def test_a_group_is_made_with_its_limit_where_memory_is_delegated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of version 2, which not every machine has, as a plain directory."""
    control = tmp_path / "cgroup.subtree_control"
    parents = [memory_group.GroupParent(tmp_path, 2)]
    monkeypatch.setattr(memory_group, "_own_parents", lambda: parents)
    control.write_text("cpu pids\n")
    assert create_memory_group(5 << 20) is None
    assert str(tmp_path) in (missing_reason() or "")
    control.write_text("cpu memory pids\n")
    make = Path.mkdir

    def mkdir(path: Path) -> None:
        make(path)
        for name in ("cgroup.procs", "memory.max", "memory.swap.max"):
            (path / name).write_text("")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    group = create_memory_group(5 << 20)
    assert group is not None
    written = {name: (group.path / name).read_text() for name in ("memory.max", "memory.swap.max")}
    os.close(group.entrance)
    assert written == {"memory.max": str(5 << 20), "memory.swap.max": "0"}


def test_a_group_of_a_process_that_is_gone_is_removed(tmp_path: Path) -> None:
    stale, alive = tmp_path / f"hermes-sandbox-{1 << 30}-0", tmp_path / f"hermes-sandbox-{os.getpid()}-0"
    stale.mkdir()
    alive.mkdir()
    memory_group._remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [alive.name]


_SUM = """
import os, time
for number in range(4):
    if os.fork() == 0:
        data = bytearray(os.urandom(1 << 20)) * 60
        time.sleep(600)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@needs_bubblewrap
async def test_processes_and_shared_memory_of_a_sandbox_share_one_limit() -> None:
    reason = missing_reason()
    if reason is not None:
        pytest.skip(f"needs a control group: {reason}")
    sandbox = await open_sandbox(SETTINGS, interactive=False)
    try:
        await sandbox.write_file("sum.py", _SUM.encode())
        result = await sandbox.run("python3 -I sum.py", timeout_s=100)
        assert result.output == "-9\n"  # each has less than a process may use, together they have more
        fill = "head -c 100M /dev/zero > /tmp/a; head -c 100M /dev/zero > /dev/shm/b; echo survived"
        assert "survived" not in (await sandbox.run(fill, timeout_s=100)).output.splitlines()[-1:]
        assert (await sandbox.run("rm -f /tmp/a; echo still here")).output == "still here\n"
    finally:
        await sandbox.close()
    parents = memory_group._own_parents()
    mine = f"hermes-sandbox-{os.getpid()}-*"
    assert [path for parent in parents for path in parent.path.glob(mine)] == []


def test_doctor_says_which_limit_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    _, with_group = sandbox_checks()
    assert (with_group.status == "ok") == (missing_reason() is None)
    monkeypatch.setattr(memory_group, "_own_parents", list)
    _, without = sandbox_checks()
    assert "limits are per process" in without.what
    assert "systemd-run" in without.fix


@needs_bubblewrap
async def test_without_a_group_commands_run_with_limits_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_group, "_own_parents", list)
    sandbox = await open_sandbox(SETTINGS, interactive=False)
    try:
        result = await sandbox.run("python3 -I -c 'bytearray(200 << 20)' 2>&1 | tail -1")
        assert result.output == "MemoryError\n"
    finally:
        await sandbox.close()
