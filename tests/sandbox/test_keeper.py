"""Nothing outlives Hermes, however either of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.errors import SandboxError
from hermes.sandbox import open_sandbox
from hermes.sandbox.base import Sandbox
from hermes.sandbox.supervisor import Launch, SandboxSupervisor
from tests.sandbox.conftest import BACKENDS, Marker, need
from tests.waiting import wait_until

HERMES = """
import asyncio, sys
from hermes.config.settings import SandboxSettings
from hermes.sandbox import open_sandbox

async def main():
    backend, command = sys.argv[1:]
    sandbox = await open_sandbox(SandboxSettings(backend=backend), interactive=False)
    await sandbox.start(command)
    await sandbox.run(command)

asyncio.run(main())
"""


FORKING = """
import asyncio, os, time
from hermes.config.settings import SandboxSettings
from hermes.sandbox import open_sandbox

async def main():
    sandbox = await open_sandbox(SandboxSettings(backend="local"), interactive=False)
    await sandbox.run("true")
    await sandbox.close()

asyncio.run(main())
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(600)
print(child, flush=True)
"""


def test_a_process_ends_while_its_fork_goes_on() -> None:
    """The fork has a copy of the channel by which the server of keepers sees its process end."""
    done = subprocess.run([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, timeout=60, check=True)
    os.kill(int(done.stdout), signal.SIGKILL)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name
)
def test_when_hermes_is_killed_its_commands_end(
    backend: str, number: int, marker: Marker, tmp_path: Path
) -> None:
    need(backend)
    sleep = f"sleep {marker.seconds}"
    command = f"(setsid sh -c 'trap \"\" TERM; {sleep}' >/dev/null 2>&1 &); env -i {sleep} & {sleep}"
    argv = [sys.executable, "-c", HERMES, backend, command]
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # for the workspace that nobody is left to remove
    with subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL) as hermes:
        marker.wait_running(6)
        hermes.send_signal(number)
    marker.wait_running(0)


def test_a_daemon_does_outlive_a_plain_time_out(marker: Marker) -> None:
    """The control: this is how daemons get away without a keeper."""
    shell = subprocess.Popen(
        ["sh", "-c", f"setsid sleep {marker.seconds} & sleep {marker.seconds}"], start_new_session=True
    )
    marker.wait_running(2)
    os.killpg(shell.pid, 9)
    shell.wait()
    marker.wait_running(1)
    (survivor,) = marker.running()
    os.kill(survivor, 9)


def children_of(pid: int) -> set[int]:
    """Those that run our keeper: of this process its server, of the server the keepers."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = {int(child) for task in tasks for child in task.read_text().split()}
    return {child for child in children if b"'keeper'" in Path(f"/proc/{child}/cmdline").read_bytes()}


def keepers() -> set[int]:
    return {keeper for server in children_of(os.getpid()) for keeper in children_of(server)}


async def opened_local() -> tuple[Sandbox, int]:
    """A sandbox, and its keeper."""
    before = keepers()
    sandbox = await open_sandbox(SandboxSettings(backend="local"), interactive=False)
    await sandbox.run("true")
    (keeper,) = keepers() - before
    return sandbox, keeper


async def test_when_the_keeper_is_killed_its_commands_end_and_no_more_start(marker: Marker) -> None:
    sandbox, keeper = await opened_local()
    process = await sandbox.start(f"sleep {marker.seconds} & sleep {marker.seconds}")
    os.kill(keeper, signal.SIGKILL)
    with pytest.raises(SandboxError, match="ended"):
        while True:
            await sandbox.run("true")
    await sandbox.close()
    assert process.exit_code == 137
    marker.wait_running(0)


async def test_signals_from_the_terminal_do_not_reach_the_commands(marker: Marker) -> None:
    local, keeper = await opened_local()
    process = await local.start(f"sleep {marker.seconds}")
    marker.wait_running(1)
    (pid,) = marker.running()
    assert os.getpgid(pid) != os.getpgid(0)
    assert os.getsid(pid) not in (os.getsid(0), os.getsid(keeper))
    for process_id in (keeper, *children_of(os.getpid())):
        os.kill(process_id, signal.SIGINT)
    assert (await local.run("echo fine")).output == "fine\n"
    await process.kill()
    await local.close()


async def test_sandboxes_share_one_server_and_its_end_is_no_end_of_theirs() -> None:
    first, _ = await opened_local()
    second, _ = await opened_local()
    (server,) = children_of(os.getpid())
    os.kill(server, signal.SIGKILL)
    for sandbox in (first, second):
        assert (await sandbox.run("echo fine")).output == "fine\n"
        await sandbox.close()
    third, _ = await opened_local()
    assert (await third.run("echo fine")).output == "fine\n"
    await third.close()
    assert children_of(os.getpid()) - {server}, "another one has been started"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_sandbox_that_is_closed_leaves_no_process(backend: str) -> None:
    need(backend)
    before = keepers()
    sandbox = await open_sandbox(SandboxSettings(backend=backend), interactive=False)
    await sandbox.run("true")
    assert keepers() - before
    await sandbox.close()
    wait_until(lambda: keepers() <= before)


async def test_the_keeper_of_a_sandbox_has_its_user_and_no_rights(bubblewrap: Sandbox) -> None:
    before = keepers()
    await bubblewrap.run("true")
    (keeper,) = keepers() - before
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{keeper}/status").read_text().splitlines())
    assert {name: int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {
        "CapPrm": 0,
        "CapEff": 0,
        "CapInh": 0,
        "CapAmb": 0,
    }
    assert status["NoNewPrivs"] == "1" and 0 not in map(int, status["Uid"].split())
    for name in ("user", "mnt", "net", "ipc", "uts"):
        ours, theirs = (Path(f"/proc/{pid}/ns/{name}").readlink() for pid in (os.getpid(), keeper))
        assert ours != theirs, name


async def test_a_keeper_that_cannot_start_says_why() -> None:
    with pytest.raises(SandboxError, match="No such file"):
        await SandboxSupervisor.open(["/no/such/prefix"])
    with pytest.raises(SandboxError, match="went wrong"):
        await SandboxSupervisor.open(["/bin/sh", "-c", "echo went wrong >&2; exit 1"])


async def test_a_program_that_does_not_exist_is_the_sandboxes_failure() -> None:
    supervisor = await SandboxSupervisor.open()
    try:
        with pytest.raises(SandboxError, match="No such file"):
            await supervisor.run(Launch(["/no/such/shell"], "x", "/", {}), timeout_s=10)
    finally:
        await supervisor.close()


async def test_limits_are_set_for_the_command_and_everything_below_it() -> None:
    supervisor = await SandboxSupervisor.open()
    try:
        launch = Launch(
            ["/bin/sh", "-c", "sh -c 'ulimit -f; ulimit -c'"],
            "x",
            "/",
            {},
            [("RLIMIT_FSIZE", 512000, 512000)],
        )
        finished = await supervisor.run(launch, timeout_s=10)
        assert finished.capture.text().split()[0] == "1000"
    finally:
        await supervisor.close()


async def test_a_limit_that_is_stricter_already_stays() -> None:
    supervisor = await SandboxSupervisor.open()
    try:
        limits = [("RLIMIT_FSIZE", size, size) for size in (5120, 1 << 30)]
        launch = Launch(["/bin/sh", "-c", "ulimit -f"], "x", "/", {}, limits)
        assert (await supervisor.run(launch, timeout_s=10)).capture.text() == "10\n"
    finally:
        await supervisor.close()
