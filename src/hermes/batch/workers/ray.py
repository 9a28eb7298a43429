"""Workers as actors on a Ray cluster; the driver, this process, keeps the journal.

Promises: an entry is on the driver's disk before its sample counts as finished, so a sample that was lost
with its actor, its node or the network stays unfinished; reports of a worker that was given up are never
read, so no sample counts twice. Actors request no CPUs, since they mostly wait for a model, so none has to
wait on a full cluster; they are distributed evenly over the nodes that have CPUs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes import __version__
from hermes.batch.journal import JournalSegment, SampleEntry
from hermes.batch.workers.base import WorkerHandle, WorkerJob
from hermes.batch.workers.ray_actor import RayActor
from hermes.cluster.actors import EvenPlacement, first_line, last_line
from hermes.cluster.connect import open_cluster
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
