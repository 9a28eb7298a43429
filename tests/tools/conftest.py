"""Benches on real sandboxes; the isolating one is skipped by name where it cannot run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from hermes.config.settings import Settings
from hermes.core import new_id
from hermes.safety.approval import AllowAll
from hermes.sandbox import unusable_reason
from hermes.sandbox.base import Sandbox
from hermes.tools.base import Workbench
from tests.tools.bench import open_bench


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Workbench]:
    """A bench in the local sandbox, in tmp_path/workspace, where everything is approved."""
    async with _opened("local", tmp_path) as bench:
        yield bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_sandbox(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandbox]:
    async with open_bench("local", tmp_path_factory.mktemp("workspace")) as bench:
        yield bench.sandbox


@pytest.fixture
def desk(shared_sandbox: Sandbox) -> Workbench:
    """A new bench on a local sandbox that the module's tests share; for tests that hardly use files.

    Its module must run its tests in one loop: pytestmark = pytest.mark.asyncio(loop_scope="module").
    """
    return Workbench(shared_sandbox, Settings(), AllowAll(), new_id())


@pytest.fixture
async def isolated(tmp_path: Path) -> AsyncIterator[Workbench]:
    """The same in bubblewrap."""
    async with _opened("bubblewrap", tmp_path) as bench:
        yield bench


@pytest.fixture(params=["local", "bubblewrap"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Workbench]:
    """Each of the two in turn."""
    async with _opened(request.param, tmp_path) as bench:
        yield bench


@asynccontextmanager
async def _opened(backend: str, folder: Path) -> AsyncIterator[Workbench]:
    missing = unusable_reason(backend)
    if missing is not None:
        pytest.skip(f"{backend}: {missing}")
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    async with open_bench(backend, workspace) as bench:
        yield bench
