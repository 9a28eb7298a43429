"""Where a worker runs, as its front sees it: a process of this machine, or an actor of a Ray cluster."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any, Protocol


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
