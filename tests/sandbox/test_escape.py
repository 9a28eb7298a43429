"""Each probe reaches something it should not in `local`, which shows that it works, and not in bubblewrap.

A probe prints REACHED if it got there. All are harmless on the host even so: they touch only what the test
made for them, or write back what was there before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from hermes.config.settings import SandboxSettings
from hermes.sandbox import open_sandbox
from hermes.sandbox.base import Sandbox
from hermes.sandbox.docker import find_engine
from hermes.sandbox.guards.bare_python import bare_python
from tests.sandbox.conftest import Marker, need
from tests.sandbox.probes import CANARY, PROBES, Probe, World

pytestmark = pytest.mark.asyncio(loop_scope="module")
IS_ROOT = os.geteuid() == 0
HOME = os.environ.get("HOME", "/")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


IMAGE = "python:3.11-slim"
SHOWN_BY_ENGINES = {"the host's devices"}
"""Both engines show a read-only /sys; podman's own system-call filter also allows user namespaces."""
SMALL = {"memory_mb": 100, "max_processes": 60}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(world: World) -> AsyncIterator[tuple[Sandbox, Sandbox]]:
    """A local and a bubblewrap sandbox, opened by a Hermes with a canary in its environment."""
    need("bubblewrap")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PROBE_CANARY", CANARY)
        monkeypatch.setenv("HOME", str(world.home))
        monkeypatch.setenv("HERMES_HOME", str(world.home / ".hermes"))
        opened = [
            await open_sandbox(SandboxSettings(backend=name, **SMALL), interactive=False)
            for name in ("local", "bubblewrap")
        ]
        yield opened[0], opened[1]
        for sandbox in opened:
            await sandbox.close()


async def reaches(sandbox: Sandbox, script: str, python: str = bare_python().executable) -> bool:
    await sandbox.write_file("probe.py", script.encode())
    result = await sandbox.run(f"{python} -I -S probe.py", timeout_s=30)
    assert not result.timed_out
    assert "SyntaxError" not in result.output
    return "REACHED" in result.output


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name.replace(" ", "-"))
async def test_a_probe_that_works_gets_nowhere_in_bubblewrap(
    probe: Probe, world: World, pair: tuple[Sandbox, Sandbox]
) -> None:
    local, bubblewrap = pair
    script = world.fill(probe.script)
    if IS_ROOT or not probe.needs_root:
        assert await reaches(local, script), "the probe itself does not work"
    assert not await reaches(bubblewrap, script)


@pytest.mark.skipif(not IS_ROOT, reason="only root can have a workspace that belongs to root")
async def test_nor_does_any_in_a_workspace_that_belongs_to_root(world: World, tmp_path: Path) -> None:
    need("bubblewrap")
    settings = SandboxSettings(backend="bubblewrap", **SMALL)
    sandbox = await open_sandbox(settings, interactive=False, workspace=tmp_path)
    try:
        reached = {probe.name for probe in PROBES if await reaches(sandbox, world.fill(probe.script))}
    finally:
        await sandbox.close()
    assert reached == {"hundreds of processes"}  # the kernel does not count root's


async def test_nor_does_any_in_a_container(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    need("docker")
    monkeypatch.setenv("PROBE_CANARY", CANARY)
    monkeypatch.setenv("HOME", HOME)  # where podman without root has its images
    settings = SandboxSettings(backend="docker", image=IMAGE, **SMALL)
    sandbox = await open_sandbox(settings, interactive=False)
    try:
        works = "print('REACHED')"
        assert await reaches(sandbox, works, "python3"), "there is no Python in the image"
        reached = {p.name for p in PROBES if await reaches(sandbox, world.fill(p.script), "python3")}
    finally:
        await sandbox.close()
    assert reached <= {*SHOWN_BY_ENGINES, *({"a user namespace"} if "podman" in find_engine() else ())}


async def test_a_link_planted_in_the_workspace_does_not_lead_our_own_reading_out(
    world: World, pair: tuple[Sandbox, Sandbox]
) -> None:
    local, bubblewrap = pair
    home = world.home
    plant = f"ln -s {home}/.ssh/id_ed25519 file; ln -s {home} dir; ln -s /proc/self/root/{home} proc"
    for sandbox in pair:
        assert (await sandbox.run(plant)).exit_code == 0
    for path in ("file", "dir/.ssh/id_ed25519", "proc/.ssh/id_ed25519", f"{world.home}/.ssh/id_ed25519"):
        assert await local.read_file(path) == CANARY.encode()
        with pytest.raises(FileNotFoundError):
            await bubblewrap.read_file(path)


async def test_nor_our_own_writing(world: World, pair: tuple[Sandbox, Sandbox]) -> None:
    local, bubblewrap = pair
    target = world.outside / "by-us"
    for sandbox in pair:
        assert (await sandbox.run(f"ln -s {world.outside} out; ln -s {target} direct")).exit_code == 0
    for path in ("out/by-us", "direct", str(target)):
        with contextlib.suppress(OSError):  # where the path exists inside as well, it is written inside
            await bubblewrap.write_file(path, b"x")
        assert not target.exists()
        await local.write_file(path, b"x")
        assert target.read_bytes() == b"x"
        target.unlink()


async def test_with_the_hosts_network_its_loopback_is_reached_and_its_files_still_are_not(
    world: World,
) -> None:
    need("bubblewrap")
    settings = SandboxSettings(backend="bubblewrap", network=True, network_allow=("host",))
    sandbox = await open_sandbox(settings, interactive=False)
    probes = {probe.name: world.fill(probe.script) for probe in PROBES}
    try:
        assert await reaches(sandbox, probes["a server on the host's loopback"])
        assert not await reaches(sandbox, probes["a private key in the home directory"])
        assert not await reaches(sandbox, probes["a signal to Hermes"])
    finally:
        await sandbox.close()


async def test_a_fork_bomb_ends_with_its_time_out(pair: tuple[Sandbox, Sandbox], marker: Marker) -> None:
    """Every process goes on forking until there are 200, or no more are allowed."""
    bomb = (
        "import os, sys, time\n"
        "while len(os.listdir('started')) < 200:\n"
        "    open(f'started/{os.getpid()}-{time.monotonic_ns()}', 'w').close()\n"
        "    try: os.fork()\n"
        "    except OSError: time.sleep(0.05)\n"
        f"os.execvp('sleep', ['sleep', '{marker.seconds}'])\n"
    )
    for sandbox in pair:
        await sandbox.write_file("bomb.py", bomb.encode())
        result = await sandbox.run(f"mkdir started; {bare_python().executable} -I -S bomb.py", timeout_s=2)
        assert result.timed_out
        assert marker.running() == []
        assert (await sandbox.run("echo still here")).output == "still here\n"


async def test_an_option_smuggled_in_as_a_variable_does_not_run_outside(
    pair: tuple[Sandbox, Sandbox],
) -> None:
    """Variables are for the command; the program that makes the sandbox must not see them."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    _, bubblewrap = pair
    source = '#include <stdio.h>\n__attribute__((constructor)) void f(void) { fopen("/tmp/loaded", "a"); }\n'
    await bubblewrap.write_file("evil.c", source.encode())
    built = await bubblewrap.run("cc -shared -fPIC -o evil.so evil.c && echo built")
    if built.output != "built\n":
        pytest.skip(f"needs a working C compiler: {built.output}")
    result = await bubblewrap.run(
        "cat /proc/1/maps | grep -c evil; grep -c evil /proc/self/maps",
        env={"LD_PRELOAD": f"{bubblewrap.workspace}/evil.so"},
    )
    outside, inside = result.output.split()
    assert int(outside) == 0
    assert int(inside) > 0
