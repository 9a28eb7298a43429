"""A worker on a Ray node: `batch.workers.worker` inside an actor, with method calls instead of pipes.

The actor keeps no journal: this node's disk may not be the driver's. It sends each entry, redacted with the
secrets known on this node, to the driver before the report that the sample is finished. Configuration, keys,
sandboxes and the trajectory store are this node's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future

from hermes import __version__
from hermes.batch.journal import SampleEntry
from hermes.batch.workers.base import WorkerJob
from hermes.batch.workers.worker import SendReport, work
from hermes.config.environment import export_stored
from hermes.core import JSONObject
from hermes.errors import HermesError


class RayActor:
    """Made into an actor by `batch.workers.ray`. All methods run on the actor's one event loop."""

    def __init__(self, job: WorkerJob, version: str) -> None:
        if version != __version__:
            raise HermesError(f"this node has hermes-research {__version__}, the driver {version}")
        export_stored()
        self._job = job
        self._orders: asyncio.Queue[JSONObject] = asyncio.Queue()
        self._outbox: asyncio.Queue[JSONObject] = asyncio.Queue()

    async def serve(self) -> None:
        """Runs the worker to its end; the last report says how it ended."""
        ending = "it was drained"
        try:
            await work(self._job, self._open_journal, self._outbox.put_nowait, self._incoming())
        except HermesError as error:
            self._outbox.put_nowait({"say": "fatal", "message": error.message, "hint": error.hint})
        except Exception as error:
            ending = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._outbox.put_nowait({"say": "ended", "why": ending})

    async def order(self, order: JSONObject) -> None:
        self._orders.put_nowait(order)

    async def reports(self) -> list[JSONObject]:
        """All pending reports; waits until there is one."""
        reports = [await self._outbox.get()]
        while not self._outbox.empty():
            reports.append(self._outbox.get_nowait())
        return reports

    async def _incoming(self) -> AsyncIterator[JSONObject]:
        while True:
            yield await self._orders.get()

    def _open_journal(self, redact: Callable[[str], str]) -> _DriverJournal:
        return _DriverJournal(self._outbox.put_nowait, redact)


class _DriverJournal:
    """Takes the place of the journal segment, which the driver writes."""

    def __init__(self, send_report: SendReport, redact: Callable[[str], str]) -> None:
        self._send_report = send_report
        self._redact = redact

    def append(self, entry: SampleEntry) -> Future[None]:
        """Resolves at once: the driver handles the report that follows only when the entry is on disk."""
        text = self._redact(json.dumps(entry.to_json(), ensure_ascii=False))
        self._send_report({"say": "entry", "entry": json.loads(text)})
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def close(self) -> None:
        """Nothing to close."""
