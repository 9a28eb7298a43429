"""Workers as processes on this machine: `python -m hermes.batch.worker`, spoken to over pipes.

Each writes its own journal segment, so nothing but what the display shows passes through this process.
A worker whose parent dies reads the end of its standard input, and stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from hermes.batch.workers import Job, WorkerHandle
from hermes.core import JSONObject

_LINE_BYTES = 1 << 28


class ProcessWorkers:
    """Workers for the run in a folder, whose `run.json` they read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def start(self, job: Job) -> WorkerHandle:
        money = "" if job.max_cost_usd is None else str(job.max_cost_usd)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hermes.batch.worker"),
            *(str(self._folder), job.name, str(job.concurrency), money, json.dumps(job.rewards)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
            start_new_session=True,  # a Ctrl-C at the terminal is the parent's to handle
        )
        return _ProcessWorker(process)


class _ProcessWorker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def ending(self) -> str:
        return f"exit code {self._process.returncode}"

    def send(self, order: JSONObject) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: `reports` ends
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def reports(self) -> AsyncIterator[JSONObject]:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.endswith(b"\n"):
                yield json.loads(line)
        await self._process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
