"""How bubblewrap is called, and what its sandbox gives."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.errors import SandboxError
from hermes.sandbox import open_sandbox
from hermes.sandbox.base import Sandbox
from hermes.sandbox.bubblewrap import BubblewrapSandbox, rlimits
from hermes.sandbox.bwrap_args import Bwrap, MountLayout, command_argv, host_layout, outer_argv
from hermes.sandbox.workspace import UNPRIVILEGED_ID, Workspace
from tests.sandbox.conftest import Marker, need

NEW = Bwrap("/usr/bin/bwrap", frozenset({"--disable-userns", "--size"}))
OLD = Bwrap("/usr/bin/bwrap", frozenset())
LAYOUT = MountLayout(
    binds=("/usr", "/etc/ssl/certs", "/opt/py/3.11"),
    links=(("/bin", "usr/bin"),),
    files={"/etc/passwd": b"agent"},
    path="/usr/bin",
)


def room(*, network: bool = False, drop_to: tuple[int, int] | None = None, bwrap: Bwrap = NEW) -> list[str]:
    return outer_argv(
        bwrap,
        LAYOUT,
        Path("/w"),
        shares_network=network,
        tmp_bytes=5,
        files={"/etc/passwd": 7},
        drop_to=drop_to,
    )


def test_the_command_line_of_the_room() -> None:
    assert " ".join(room()) == (
        "/usr/bin/bwrap --die-with-parent"
        " --unshare-user --uid 1000 --gid 1000 --unshare-ipc --unshare-uts --unshare-net"
        " --perms 1777 --size 5 --tmpfs /tmp --perms 0755 --dir /etc"
        " --perms 0755 --dir /etc/ssl --perms 0755 --dir /opt"
        " --perms 0755 --dir /opt/py --ro-bind /usr /usr --ro-bind /etc/ssl/certs /etc/ssl/certs"
        " --ro-bind /opt/py/3.11 /opt/py/3.11 --symlink usr/bin /bin --perms 0644 --file 7 /etc/passwd"
        " --bind /w /workspace --dev /dev --bind /proc /proc --"
    )


def test_the_command_line_of_a_command() -> None:
    argv = command_argv(NEW, LAYOUT, ["sh", "-c", "x y"], cwd="/workspace", env={"A": "b c"}, shm_bytes=5)
    assert "|".join(argv).replace("b c", "B").replace("x y", "X").replace("|", " ") == (
        "/usr/bin/bwrap --unshare-all --share-net --unshare-user --uid 1000 --gid 1000 --hostname sandbox"
        " --die-with-parent --new-session --disable-userns --clearenv --setenv A B"
        " --ro-bind /usr /usr --ro-bind /etc /etc --ro-bind /opt /opt --symlink usr/bin /bin"
        " --bind /workspace /workspace --bind /tmp /tmp"
        " --dev /dev --perms 1777 --size 5 --tmpfs /dev/shm"
        " --proc /proc --remount-ro /proc --remount-ro /dev --remount-ro /"
        " --chdir /workspace -- sh -c X"
    )


def test_options_that_an_older_bubblewrap_does_not_know_are_left_out() -> None:
    argv = [*room(bwrap=OLD), *command_argv(OLD, LAYOUT, ["x"], cwd="/", env={}, shm_bytes=5)]
    assert not {"--disable-userns", "--size"} & set(argv)


def test_the_network_is_shared_only_if_allowed() -> None:
    assert "--unshare-net" in room()
    assert "--unshare-net" not in room(network=True)


def test_root_makes_the_room_and_enters_it_as_somebody_else() -> None:
    argv = room(drop_to=(5, 6))
    outer, inner = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    assert "--unshare-user" not in outer
    assert " ".join(inner) == (
        "/usr/bin/setpriv --reuid 5 --regid 6 --clear-groups --"
        " /usr/bin/bwrap --die-with-parent --unshare-user --uid 1000 --gid 1000"
        " --unshare-ipc --unshare-uts --unshare-net --dev-bind / / --"
    )


def test_the_layout_shows_programs_and_not_people() -> None:
    layout = host_layout(shares_network=False)
    assert "/usr" in layout.binds
    home = Path.home()
    for path in (*layout.binds, *layout.files):
        assert not home.is_relative_to(path)
        assert path not in (
            "/etc",
            "/var",
            "/run",
            "/home",
            "/root",
            "/sys",
            "/proc",
            "/dev",
            "/tmp",
            "/etc/ssl",
        )
    assert "/etc/resolv.conf" not in layout.files
    assert b"root" not in layout.files["/etc/passwd"]
    if Path("/etc/resolv.conf").is_file():
        assert "/etc/resolv.conf" in host_layout(shares_network=True).files


def test_limits_follow_the_settings() -> None:
    settings = SandboxSettings(memory_mb=100, max_processes=50, cpu_s=7)
    limits = {name: (soft, hard) for name, soft, hard in rlimits(settings, "6.1.0-13-amd64")}
    assert limits["RLIMIT_DATA"] == (100 << 20, 100 << 20)
    assert limits["RLIMIT_CPU"] == (7, 8)
    assert limits["RLIMIT_NPROC"] == (50, 50)
    assert limits["RLIMIT_CORE"] == (0, 0)
    # Before, the user's every process would have counted, and no command could have started one.
    assert "RLIMIT_NPROC" not in {name for name, _, _ in rlimits(settings, "5.10.0-8")}


async def test_python_and_the_system_programs_work_inside(bubblewrap: Sandbox) -> None:
    result = await bubblewrap.run(
        "python3 -c 'import json, ssl, sqlite3, multiprocessing as m; m.Lock(); print(1)'; id -un"
    )
    assert result.output == "1\nagent\n"
    assert (await bubblewrap.run("command -v python3")).output.strip() == f"{sys.base_prefix}/bin/python3"


async def test_the_environment_is_made_up(bubblewrap: Sandbox) -> None:
    for path in ("/proc/self/environ", "/proc/1/environ"):
        names = {
            line.split("=")[0]
            for line in (await bubblewrap.run(f"tr '\\0' '\\n' < {path}")).output.split("\n")
        }
        assert names <= {"", "PATH", "HOME", "USER", "LANG", "TERM", "TMPDIR", "PWD", "SHLVL", "_"}
    assert (await bubblewrap.run("echo $HOME ~")).output == "/workspace /workspace\n"


async def test_a_command_sees_its_own_processes_only(bubblewrap: Sandbox) -> None:
    other = await bubblewrap.start("sleep 300")
    seen = (await bubblewrap.run("cat /proc/[0-9]*/comm")).output.split()
    assert {"bwrap", "cat"} <= set(seen) <= {"bwrap", "bash", "sh", "cat"}
    await other.kill()


async def test_processor_time_is_limited() -> None:
    need("bubblewrap")
    sandbox = await open_sandbox(SandboxSettings(backend="bubblewrap", cpu_s=1), interactive=False)
    result = await sandbox.run("while :; do :; done", timeout_s=60)
    await sandbox.close()
    assert result.exit_code == 128 + 24  # SIGXCPU
    assert not result.timed_out


async def test_processes_are_counted_over_all_commands_of_a_sandbox() -> None:
    need("bubblewrap")
    sandbox = await open_sandbox(SandboxSettings(backend="bubblewrap", max_processes=40), interactive=False)
    spawn = "n=0; while [ $n -lt {0} ] && (sleep 300 & ) 2>/dev/null; do n=$((n+1)); done; echo $n"
    first = await sandbox.start(f"{spawn.format(25)}; sleep 300")
    while first.output() != "25\n":
        assert await first.wait(0.05) is None
    second = await sandbox.run(spawn.format(25), timeout_s=1)
    assert "25\n" not in second.output
    await first.kill()
    assert (await sandbox.run(spawn.format(5))).output == "5\n"
    await sandbox.close()


async def test_two_sandboxes_know_nothing_of_each_other(bubblewrap: Sandbox) -> None:
    other = await open_sandbox(SandboxSettings(backend="bubblewrap"), interactive=False)
    await bubblewrap.run("echo secret > /tmp/shared; echo secret > here")
    assert (await other.run("cat /tmp/shared here; ls -A")).output.count("No such file") == 2
    server = await bubblewrap.start("python3 -m http.server 8765 --bind 127.0.0.1")
    attempt = "import socket; socket.create_connection(('127.0.0.1', 8765))"
    connect = f'until python3 -c "{attempt}" 2>/dev/null; do sleep 0.05; done'
    assert (await bubblewrap.run(connect, timeout_s=30)).exit_code == 0
    assert (await other.run(connect, timeout_s=1)).timed_out
    await server.kill()
    await other.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has somebody else to run commands as")
async def test_root_runs_commands_as_the_owner_of_the_workspace(
    bubblewrap: Sandbox, tmp_path: Path, marker: Marker
) -> None:
    process = await bubblewrap.start(f"sleep {marker.seconds}")
    await asyncio.to_thread(marker.wait_running, 1)
    assert Path(f"/proc/{marker.running()[0]}").stat().st_uid == UNPRIVILEGED_ID
    await process.kill()
    os.chown(tmp_path, 4321, 4322)
    given = await open_sandbox(SandboxSettings(backend="bubblewrap"), interactive=False, workspace=tmp_path)
    await given.run("touch theirs")
    await given.close()
    assert ((tmp_path / "theirs").stat().st_uid, (tmp_path / "theirs").stat().st_gid) == (4321, 4322)


async def test_a_bubblewrap_that_cannot_make_a_sandbox_says_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bubblewrap that fails as on a system without user namespaces."""
    from hermes.sandbox import bubblewrap as module

    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    module.find_bwrap.cache_clear()
    try:
        assert "No permissions to create a new namespace" in (
            await asyncio.to_thread(module.unusable_reason) or ""
        )
        workspace = Workspace.create(tmp_path)
        sandbox = await BubblewrapSandbox.open(SandboxSettings(), workspace)
        with pytest.raises(SandboxError, match="No permissions") as error:
            await sandbox.run("true")
        await sandbox.close()
        assert "apt install bubblewrap" in error.value.hint
    finally:
        module.find_bwrap.cache_clear()
