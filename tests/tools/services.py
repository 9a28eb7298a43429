"""A workbench as the agent builder makes it: home, environment and configuration beside the sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from hermes.config.load import load
from hermes.core import JSON
from hermes.safety.approval import Approver
from hermes.tools.base import Workbench
from tests.tools.bench import open_bench


@asynccontextmanager
async def open_service_bench(
    tmp_path: Path,
    settings: Mapping[str, JSON] | None = None,
    environ: Mapping[str, str] | None = None,
    approver: Approver | None = None,
) -> AsyncIterator[Workbench]:
    """`settings` are dotted keys; `environ` is all of the environment that the tools see."""
    workspace, home = tmp_path / "workspace", tmp_path / "home"
    workspace.mkdir(exist_ok=True)
    variables = {"HERMES_HOME": str(home), **(environ or {})}
    config = load({"sandbox.backend": "local", **(settings or {})}, variables)
    async with open_bench("local", workspace, approver) as bench:
        bench.settings = config.settings
        bench.resources.update(home=home, environ=config.environ, config=config)
        yield bench
