"""Where a worker runs, as its front sees it: a process of this machine, or an actor of a Ray cluster.

A front and its workers send each other pickled tuples over a private socket pair. Only a process that the
front itself started has the other end. A call has a number, a name and arguments; it is answered once with a
result or an error (`engine.info`), after any number of sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol

from hermes.engine.info import EngineOptions, EngineStats
from hermes.engine.sampling.request import SamplerLimits
from hermes.engine.spec import ModelSpec


class ReplicaProcess(Protocol):
    """Started when it is created."""

    @property
    def pid(self) -> int: ...

    def connect(self) -> Connection[Any, Any]:
        """Waits for the worker's end of the connection. Called once.

        OSError: the worker ended first. HermesError: why it cannot be used.
        """
        ...

    def kill(self) -> None:
        """Ends it at once; one that has ended is no error."""
        ...

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, after at most that time."""
        ...

    def describe_end(self) -> str:
        """How it ended, as the end of a sentence; waits for it."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    engine: EngineOptions
    threads: int
    """The threads of the pool that computes on a CPU."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    spec: ModelSpec
    limits: SamplerLimits
    base_bytes: int
    device: str


@dataclass(frozen=True, slots=True)
class Call:
    number: int
    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    number: int
    kind: Literal["result", "error", "token"]
    value: Any
    stats: EngineStats | None = None
    """The worker's figures, with every result and error."""
