"""Workers as processes on this machine: `python -m hermes.batch.workers.worker`, connected by pipes.

Each writes its own journal segment, so only progress reports pass through this process. When the parent dies,
the worker's standard input ends and the worker stops.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import Popen

from hermes.batch.workers.base import WorkerHandle, WorkerJob
from hermes.batch.workers.launch import launch
from hermes.core import JSONObject

_LINE_BYTES = 1 << 28


class ProcessWorkers:
    """Workers for the run in a folder, whose `run.json` they read."""

    def __init__(self, folder: Path, early: Popen[bytes] | None = None) -> None:
        """`early` is a process from `batch.workers.launch` without a job: it becomes the first worker."""
        self._folder = folder
        self._early = early

    async def start(self, job: WorkerJob) -> WorkerHandle:
        process, self._early = self._early or launch(), None
        worker = await _ProcessWorker.connect(process)
        worker.send(
            {
                "do": "start",
                "folder": str(self._folder),
                "name": job.name,
                "concurrency": job.concurrency,
                "budgeted": job.budgeted,
                "rewards": list(job.rewards),
                "policy_url": job.policy_url,
            }
        )
        return worker


class _ProcessWorker:
    def __init__(
        self, process: Popen[bytes], orders: asyncio.WriteTransport, reports: asyncio.StreamReader
    ) -> None:
        self._process = process
        self._orders = orders
        self._reports = reports

    @classmethod
    async def connect(cls, process: Popen[bytes]) -> _ProcessWorker:
        loop = asyncio.get_running_loop()
        reports = asyncio.StreamReader(limit=_LINE_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reports), process.stdout)
        orders, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        return cls(process, orders, reports)

    @property
    def ending(self) -> str:
        return f"exit code {self._process.returncode}"

    def send(self, order: JSONObject) -> None:
        if not self._orders.is_closing():  # else it died: `reports` ends
            self._orders.write(json.dumps(order).encode() + b"\n")

    async def reports(self) -> AsyncIterator[JSONObject]:
        while line := await self._reports.readline():
            if line.endswith(b"\n"):
                yield json.loads(line)
        await asyncio.to_thread(self._process.wait)
        self._orders.close()

    def kill(self) -> None:
        self._process.kill()
