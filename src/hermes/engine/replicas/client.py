"""The front's end of one worker: starts it, sends calls, receives replies, and learns of its death.

When the process is gone, for whatever reason, every call that was in flight fails with `WorkerLostError`, and
`on_lost` is called once. The work of such a call had no effect outside the process, so that it can be sent to
another one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any

from hermes.engine.info import EngineStats, decode_error
from hermes.engine.replicas.process import Call, ReplicaProcess, Reply, WorkerReady, WorkerSettings
from hermes.errors import HermesError

OnToken = Callable[[int, int, float], None]


_EXIT_S = 5.0
"""For a process that has closed its end to exit; then it is killed."""


class WorkerLostError(HermesError):
    """The worker process ended before it answered. The call can be sent to another one."""


class WorkerClient:
    """Methods may be called from any thread."""

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        start: Callable[[], ReplicaProcess],
        on_lost: Callable[[WorkerClient], None],
    ) -> None:
        """Starts the process; `ready` is done when its model is loaded, or fails with the reason."""
        self.name = name
        self.ready: Future[WorkerReady] = Future()
        self.stats: EngineStats | None = None
        """As of its last reply."""
        self._on_lost = on_lost
        self._numbers = itertools.count(1)
        self._pending: dict[int, tuple[Future[Any], OnToken | None]] = {0: (self.ready, None)}
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._lost = False
        self.process = start()
        self._connection: Connection[Any, Any] | None = None
        """None until the process has connected; no call is made before it is ready."""
        threading.Thread(target=self._read, args=(settings,), name=f"hermes-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended; it takes no further call."""
        with self._lock:
            return self._lost

    def call(self, name: str, *arguments: Any, on_token: OnToken | None = None) -> Future[Any]:
        """The reply's value; WorkerLostError if the process ends first."""
        return self.numbered_call(name, *arguments, on_token=on_token)[1]

    def numbered_call(
        self, name: str, *arguments: Any, on_token: OnToken | None = None
    ) -> tuple[int, Future[Any]]:
        """With the call's number, by which it can be cancelled."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            if self._lost:
                future.set_exception(self._lost_error())
                return number, future
            self._pending[number] = (future, on_token)
        try:
            with self._send_lock:
                assert self._connection is not None, "it is not ready"
                self._connection.send(Call(number, name, arguments))
        except (OSError, ValueError):  # the reading thread fails the call
            pass
        return number, future

    def kill(self) -> None:
        """Ends the process at once; a process that has ended is no error."""
        self.process.kill()

    def describe_end(self) -> str:
        return self.process.describe_end()

    def _read(self, settings: WorkerSettings) -> None:
        try:
            self._connection = connection = self.process.connect()
            connection.send(settings)
            while True:
                self._accept(connection.recv())
        except HermesError as error:
            self.ready.set_exception(error)
        except (EOFError, OSError):
            pass
        if not self.process.wait(_EXIT_S):
            self.kill()
            self.process.wait()
        with self._lock:
            self._lost = True
            pending, self._pending = self._pending, {}
        if self._connection is not None:
            self._connection.close()
        try:
            self._on_lost(self)
        finally:
            for future, _ in pending.values():
                if not future.done():
                    future.set_exception(self._lost_error())

    def _accept(self, reply: Reply) -> None:
        if reply.stats is not None:
            self.stats = reply.stats
        if reply.kind == "token":
            self._pass_token(reply)
            return
        with self._lock:
            future, _ = self._pending.pop(reply.number)
        if future.done():
            return
        if reply.kind == "result":
            future.set_result(reply.value)
        else:
            future.set_exception(decode_error(reply.value))

    def _pass_token(self, reply: Reply) -> None:
        """If the caller's function raises, its call fails, and no other."""
        future, on_token = self._pending[reply.number]
        if on_token is None or future.done():
            return
        try:
            on_token(*reply.value)
        except Exception as error:  # noqa: BLE001 - it becomes the call's result
            future.set_exception(error)
            self.call("cancel", reply.number)

    def _lost_error(self) -> WorkerLostError:
        return WorkerLostError(f"the engine's {self.name} {self.describe_end()}")
