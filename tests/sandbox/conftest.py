"""Real sandboxes to test in, and ways to see what they leave behind."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest

from hermes.config.settings import SandboxSettings
from hermes.sandbox import open_sandbox, unusable_reason
from hermes.sandbox.base import Sandbox
from hermes.sandbox.docker import find_engine

BACKENDS = ("local", "bubblewrap")


def need(backend: str) -> None:
    """Skips, saying why, where the back end does not work."""
    reason = unusable_reason(backend)
    if reason is not None:
        pytest.skip(f"needs {backend}: {reason}")
    if backend == "docker" and (problem := _no_image(SandboxSettings().image)):
        pytest.skip(f"needs the image {SandboxSettings().image}: {problem}")


@cache
def _no_image(image: str) -> str:
    """Why the engine cannot run this image; empty if it can. An image that is missing is pulled."""
    engine = find_engine()
    if subprocess.run([engine, "image", "inspect", image], capture_output=True).returncode == 0:
        return ""
    pulled = subprocess.run([engine, "pull", "--quiet", image], capture_output=True, text=True, timeout=300)
    return pulled.stderr.strip().rpartition("\n")[2] if pulled.returncode else ""


@pytest.fixture(params=BACKENDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """Each back end that runs on this machine alone."""
    need(request.param)
    opened = await open_sandbox(SandboxSettings(backend=request.param), interactive=False)
    yield opened
    await opened.close()


@pytest.fixture
async def local() -> AsyncIterator[Sandbox]:
    opened = await open_sandbox(SandboxSettings(backend="local"), interactive=False)
    yield opened
    await opened.close()


@pytest.fixture
async def bubblewrap() -> AsyncIterator[Sandbox]:
    need("bubblewrap")
    opened = await open_sandbox(SandboxSettings(backend="bubblewrap"), interactive=False)
    yield opened
    await opened.close()


class Marker:
    """A number for `sleep` that no other process has, so that a process can be found from outside."""

    def __init__(self) -> None:
        self.seconds = f"9{uuid.uuid4().int % 10**8:08}.5"

    def running(self) -> list[int]:
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    argv = (process / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if argv[:1] == [b"sleep"] and self.seconds.encode() in argv:
                    found.append(int(process.name))
        return found

    def wait_running(self, count: int) -> None:
        """Waits until exactly `count` processes have it; fails after long enough."""
        deadline = time.monotonic() + 20
        while len(self.running()) != count:
            assert time.monotonic() < deadline, f"{len(self.running())} running, not {count}"
            time.sleep(0.02)


@pytest.fixture
def marker() -> Marker:
    return Marker()
