"""Workers as actors on a Ray cluster; the driver, this process, keeps the journal.

Promises: an entry is on the driver's disk before its sample counts as finished, so a sample that was lost
with its actor, its node or the network stays unfinished; reports of a worker that was given up are never
read, so no sample counts twice. Actors request no CPUs, since they mostly wait for a model, so none has to
wait on a full cluster; they are distributed evenly over the nodes that have CPUs.

An actor runs `batch.workers.worker`, with method calls instead of pipes. It keeps no journal: its node's disk
may not be the driver's. It sends each entry, redacted with the secrets known on its node, to the driver
before the report that the sample is finished. Configuration, keys, sandboxes and the trajectory store are its
node's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes import __version__
from hermes.batch.journal import JournalSegment, SampleEntry
from hermes.batch.workers.base import WorkerHandle, WorkerJob
from hermes.batch.workers.worker import SendReport, work
from hermes.cluster.actors import EvenPlacement, first_line, last_line
from hermes.cluster.connect import open_cluster
from hermes.config.environment import export_stored
from hermes.config.load import load
from hermes.core import JSONObject
from hermes.errors import HermesError
from hermes.safety.redact import Redactor


@contextmanager
def open_ray_workers(folder: Path, address: str | None, num_workers: int) -> Iterator[RayWorkers]:
    """Workers for the run in `folder`, on the cluster that `cluster.connect.prepare` was called for."""
    with open_cluster(address, num_workers) as ray:
        yield RayWorkers(folder, ray)


class RayWorkers:
    def __init__(self, folder: Path, ray: Any) -> None:
        """`ray`: the module, connected to a cluster."""
        self._folder = folder
        self._ray = ray
        self._placement = EvenPlacement(ray)
        self._actor_class = ray.remote(**EvenPlacement.RESOURCES)(RayActor)

    async def start(self, job: WorkerJob) -> WorkerHandle:
        redact = Redactor(load(job.spec.settings).secrets).text
        segment = JournalSegment(self._folder / "journal" / f"{job.name}.jsonl", redact)
        actor = self._actor_class.options(scheduling_strategy=self._placement.choose_node()).remote(
            job, __version__
        )
        actor.serve.remote()
        return _RayWorker(self._ray, actor, segment)


class _RayWorker:
    def __init__(self, ray: Any, actor: Any, segment: JournalSegment) -> None:
        self._ray = ray
        self._actor = actor
        self._segment = segment
        self._ending = "still running"

    @property
    def ending(self) -> str:
        return self._ending

    def send(self, order: JSONObject) -> None:
        self._actor.order.remote(order)

    async def reports(self) -> AsyncIterator[JSONObject]:
        errors = self._ray.exceptions
        try:
            while True:
                reports: list[JSONObject] = await self._actor.reports.remote()
                await self._write([report["entry"] for report in reports if report["say"] == "entry"])
                for report in reports:
                    if report["say"] == "ended":
                        self._ending = report["why"]
                        return
                    if report["say"] != "entry":
                        yield report
        except HermesError as error:
            yield {"say": "fatal", "message": error.message, "hint": error.hint}
        except errors.RayError as error:
            self._ending = first_line(error)
            if getattr(error, "actor_init_failed", False):
                yield _start_failure(error)
        finally:
            self.kill()  # even if it was only unreachable: its reports are no longer read
            self._segment.close()

    def kill(self) -> None:
        self._ray.kill(self._actor)

    async def _write(self, entries: list[JSONObject]) -> None:
        for future in [self._segment.append(SampleEntry.from_json(entry)) for entry in entries]:
            await asyncio.wrap_future(future)


def _start_failure(error: Exception) -> JSONObject:
    """Other nodes would most likely fail too, and no sample is to blame: the run stops."""
    return {
        "say": "fatal",
        "message": f"a worker cannot start on the cluster: {last_line(error)}",
        "hint": f"pip install 'hermes-research[ray]=={__version__}' on every node",
    }


class RayActor:
    """All methods run on the actor's one event loop."""

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
