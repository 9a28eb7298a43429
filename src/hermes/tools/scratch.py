"""The agent's scratch directory in the workspace: `.hermes/`, hidden from git and from file searches."""

from __future__ import annotations

from hermes.tools.base import Workbench

SCRATCH = ".hermes"
_READY = "scratch"


async def write_scratch(bench: Workbench, name: str, data: bytes) -> str:
    """Writes `.hermes/<name>` in the sandbox and returns that path, relative to the workspace."""
    if bench.resources.get(_READY) is not bench.sandbox:
        await bench.sandbox.write_file(f"{SCRATCH}/.gitignore", b"*\n")
        bench.resources[_READY] = bench.sandbox
    path = f"{SCRATCH}/{name}"
    await bench.sandbox.write_file(path, data)
    return path
