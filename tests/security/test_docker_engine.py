"""A real container engine: daemons, shared memory, leftovers, set-uid files, the socket of the engine."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hermes.config.settings import SandboxSettings
from hermes.errors import SandboxError
from hermes.sandbox import docker, open_sandbox
from hermes.sandbox.base import Sandbox, end_processes
from hermes.sandbox.docker import LABEL, find_engine, run_argv
from tests.sandbox.conftest import Marker, need

SETTINGS = SandboxSettings(backend="docker", memory_mb=100, max_processes=60)
_FILL = """
import mmap
room = mmap.mmap(-1, 300 << 20)
for at in range(0, 300 << 20, 4096):
    room[at] = 1
print("had it")
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def marker() -> Marker:
    return Marker()


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    need("docker")
    opened = await open_sandbox(SETTINGS, interactive=False)
    yield opened
    await opened.close()


async def test_a_daemon_is_dead_before_grading_and_the_container_goes_on(
    sandbox: Sandbox, marker: Marker
) -> None:
    daemon = f"setsid env -i sleep {marker.seconds} > /dev/null 2>&1 &"
    await sandbox.run(f"({daemon}); ({daemon}); echo started")
    marker.wait_running(2)
    await end_processes(sandbox, ())
    assert marker.running() == []
    assert (await sandbox.run("echo still here")).output == "still here\n"


async def test_an_engine_that_ignores_its_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As podman does without root and with control groups of version 1; here it is not given the limit."""
    need("docker")
    monkeypatch.setattr(docker, "run_argv", _without_a_memory_limit)
    with pytest.raises(SandboxError, match="limits neither memory nor processes"):
        await open_sandbox(SETTINGS, interactive=False)


def _without_a_memory_limit(*arguments: Any, **options: Any) -> list[str]:
    argv = run_argv(*arguments, **options)
    at = argv.index("--memory")
    return argv[:at] + argv[at + 4 :]  # and --memory-swap


async def test_shared_memory_counts_towards_the_limit(sandbox: Sandbox) -> None:
    await sandbox.write_file("fill.py", _FILL.encode())
    result = await sandbox.run("python3 -I fill.py; echo status $?", timeout_s=120)
    assert "had it" not in result.output
    assert (await sandbox.run("echo still here")).output == "still here\n"


async def test_the_engine_and_its_socket_are_out_of_reach(sandbox: Sandbox) -> None:
    sockets = "/var/run/docker.sock /run/docker.sock /run/containerd"
    looked = await sandbox.run(f"ls {sockets} 2>&1; grep Cap /proc/self/status")
    assert "No such file" in looked.output
    capabilities = [line.split()[1] for line in looked.output.splitlines() if line.startswith("Cap")]
    assert {int(value, 16) for value in capabilities} == {0}
    assert (await sandbox.run("grep NoNewPrivs /proc/self/status")).output.split()[1] == "1"


async def test_a_set_uid_file_gives_nothing_inside(sandbox: Sandbox) -> None:
    """The file belongs to the user of the workspace, and no program gains privileges."""
    made = await sandbox.run("cp /bin/sh s && chmod 4755 s; stat -c %u s; id -u; ./s -p -c 'id -u'")
    owner, user, became = made.output.split()[-3:]
    assert owner == user == became


async def test_nothing_is_left_when_a_sandbox_is_closed() -> None:
    need("docker")
    opened = await open_sandbox(SETTINGS, interactive=False)
    name = opened._name  # type: ignore[attr-defined]
    assert name in _containers()
    await opened.run("echo x > kept; (setsid sleep 999 &)")
    workspace = opened._workspace.path  # type: ignore[attr-defined]
    await opened.close()
    deadline = time.monotonic() + 60
    while name in _containers():  # the engine removes it after its last process has ended
        assert time.monotonic() < deadline, "the container is left"
        await asyncio.sleep(0.2)
    assert not Path(workspace).exists()


def _containers() -> list[str]:
    listing = [find_engine(), "ps", "--all", "--format", "{{.Names}}", "--filter", f"label={LABEL}"]
    return subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
