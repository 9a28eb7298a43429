"""The pool's interface to a worker: a process on this machine, or an actor on a Ray cluster.

The pool sends orders, the worker sends reports; both are the JSON objects described in
`batch.workers.worker`. A worker reports a sample as finished only when its entry is on the disk of the
machine that runs the pool: all other guarantees depend on this one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from hermes.batch.spec import RunSpec
from hermes.core import JSONObject


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """The parameters of a worker."""

    name: str
    """Unique among all starts of the run; names the worker's journal segment."""
    spec: RunSpec
    concurrency: int
    """Maximum number of samples in flight in this worker."""
    budgeted: bool
    """Whether each model call asks the pool for its cost first; see batch.workers.run_budget."""
    rewards: tuple[str, ...]
    """Reward functions named by rows."""
    policy_url: str | None = None
    """Where the trained weights that `spec.model` names answer as `policy`, in this start of the run; None:
    the model is a provider's, or at `spec.base_url`."""

    @property
    def target(self) -> tuple[str, str | None]:
        """The model and the address for requests."""
        if self.policy_url is None:
            return self.spec.model, self.spec.base_url
        return "policy", self.policy_url


class WorkerHandle(Protocol):
    """The pool's end of one worker."""

    @property
    def ending(self) -> str:
        """How the worker ended, as text; valid once `reports` is exhausted."""
        ...

    def send(self, order: JSONObject) -> None:
        """Never fails: an order to a dead worker is lost, and `reports` ends."""
        ...

    def reports(self) -> AsyncIterator[JSONObject]:
        """Reports until the worker has ended, for any reason. Iterate once."""
        ...

    def kill(self) -> None:
        """Kills the worker at once; no effect if it has ended."""
        ...


class WorkerSource(Protocol):
    """Starts workers."""

    async def start(self, job: WorkerJob) -> WorkerHandle: ...
