"""What the pool asks of a worker, wherever it runs: a process on this machine, or an actor on a Ray cluster.

A worker is told what to do by orders and answers with reports; both are the JSON objects described in
`batch.worker`. It reports a sample finished only when its entry is on the disk of the machine that runs
the pool: that is the one promise everything else rests on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from hermes.batch.spec import RunSpec
from hermes.core import JSONObject


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """What a worker is started with."""

    name: str
    """Unique among all starts of the run; names the worker's journal segment."""
    spec: RunSpec
    concurrency: int
    """Samples it gets at once, at most."""
    max_cost_usd: float | None
    rewards: tuple[str, ...]
    """Reward functions that rows name themselves."""


class WorkerHandle(Protocol):
    """The pool's end of one worker."""

    @property
    def ending(self) -> str:
        """How it ended, for a person; meaningful once `reports` is exhausted."""
        ...

    def send(self, order: JSONObject) -> None:
        """Never fails: what is sent to a dead worker is lost, and `reports` ends."""
        ...

    def reports(self) -> AsyncIterator[JSONObject]:
        """Until the worker has ended, in whatever way. To be iterated once."""
        ...

    def kill(self) -> None:
        """At once, whatever it does; does nothing to one that ended."""
        ...


class WorkerSource(Protocol):
    """Where workers come from."""

    async def start(self, job: WorkerJob) -> WorkerHandle: ...
