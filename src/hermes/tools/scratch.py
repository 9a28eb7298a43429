"""The agent's scratch directory in the workspace: `.hermes/`, hidden from git and from file searches."""

from __future__ import annotations

from pathlib import Path

from hermes.safety.paths import resolve_inside
from hermes.tools.base import Workbench
from hermes.tools.workspace import private_places

SCRATCH = ".hermes"
_READY = "scratch"


async def write_scratch(bench: Workbench, name: str, data: bytes) -> str:
    """Writes `.hermes/<name>` in the sandbox and returns that path, relative to the workspace.

    PermissionError if a link in the workspace leads it elsewhere."""
    folder = _folder(bench)
    if bench.resources.get(_READY) is not bench.sandbox:
        await bench.sandbox.write_file(f"{folder}/.gitignore", b"*\n")
        bench.resources[_READY] = bench.sandbox
    path = f"{folder}/{name}"
    await bench.sandbox.write_file(path, data)
    return path


def _folder(bench: Workbench) -> str:
    if bench.sandbox.isolated:
        return SCRATCH
    root = Path(bench.sandbox.workspace).resolve()
    places = private_places(bench)
    real = resolve_inside(root, SCRATCH)
    if real == places.hermes_home and places.workspaces is not None:  # the workspace is the user's home
        real = places.workspaces / "scratch"
    return str(real.relative_to(root))
