"""The workers of a front: how many fit, their start, their deaths and their return.

A worker that dies is started again; until it is ready the others do its work. `on_ready` is called under the
fleet's lock before a worker becomes available, so that whatever is sent there arrives before any request.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from hermes.core.processors import usable_processors
from hermes.engine.footprint import cpu_bytes_needed
from hermes.engine.info import EngineOptions
from hermes.engine.local_process import LocalProcess
from hermes.engine.replicas.client import WorkerClient
from hermes.engine.replicas.process import ReplicaProcess, WorkerReady, WorkerSettings
from hermes.engine.types import EngineCapacityError
from hermes.errors import HermesError, HostError

_logger = logging.getLogger(__name__)
_MAX_STARTS = 5
"""In a row, without becoming ready; then the worker is given up."""
_WORKER_MODULE = "hermes.engine.replicas.worker"
_CORES_PER_REPLICA = 8
"""Cores of a CPU that `auto` gives a replica: fewer sample and train faster with one pool of threads."""


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    settings: WorkerSettings
    start: Callable[[], ReplicaProcess]


def auto_replicas(ranks: int = 1) -> int:
    """One a visible GPU, or for every `ranks` of them; on a CPU one for every eight cores."""
    import torch

    gpus = torch.cuda.device_count()
    return max(1, gpus // ranks) if gpus else max(1, usable_processors() // (_CORES_PER_REPLICA * ranks))


def place(options: EngineOptions, replicas: int) -> list[WorkerPlacement]:
    """Where each worker computes: GPUs in turn, or an equal share of the cores."""
    import torch

    gpus = torch.cuda.device_count() if options.device in ("auto", "cuda", "cuda:0") else 0
    ranks = options.tensor_parallel_size
    if not gpus:
        memory = None if options.memory_bytes is None else options.memory_bytes // replicas
        threads = max(1, usable_processors() // (replicas * ranks))
        settings = WorkerSettings(replace(options, memory_bytes=memory), threads)
        start = partial(LocalProcess, _WORKER_MODULE, {})
        return [WorkerPlacement(settings, start) for _ in range(replicas)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = visible if len(visible) == gpus and visible[0] else [str(number) for number in range(gpus)]
    share = 1 / -(-replicas * ranks // gpus)
    settings = WorkerSettings(replace(options, device="cuda", device_share=share), 0)
    placements = []
    for number in range(replicas):
        visible_here = dict.fromkeys(names[(number * ranks + rank) % gpus] for rank in range(ranks))
        environ = {"CUDA_VISIBLE_DEVICES": ",".join(visible_here)}
        placements.append(WorkerPlacement(settings, partial(LocalProcess, _WORKER_MODULE, environ)))
    return placements


class WorkerFleet:
    def __init__(
        self,
        placements: list[WorkerPlacement],
        on_ready: Callable[[int, WorkerClient], None],
        on_lost: Callable[[WorkerClient], None],
        on_change: Callable[[], None],
        *,
        on_host: bool = True,
    ) -> None:
        """`on_host`: all workers are on this machine, whose memory they share.

        `on_ready` and `on_lost` are called under the lock, the first one before the worker is available.
        `on_change` is called, in any thread, after a worker became available, and when none is left.
        """
        self._placements, self._on_host = placements, on_host
        self._on_ready, self._on_lost, self._on_change = on_ready, on_lost, on_change
        self.lock = threading.RLock()
        """Held while workers join, and by whoever must not miss one that joins."""
        self._changed = threading.Condition(self.lock)
        self._clients: dict[int, WorkerClient] = {}
        """Available ones, by number."""
        self._starting: dict[int, WorkerClient] = {}
        self._closed = False
        self._failures: dict[int, int] = {}
        self.first: WorkerReady | None = None

    def start(self) -> WorkerReady:
        """Starts all workers. HermesError: the model cannot be loaded, or so many do not fit."""
        try:
            self.first = first = self._launch(0).ready.result()
            self._check_memory(first)
            clients = [self._launch(number) for number in range(1, len(self._placements))]
            for client in clients:
                client.ready.result()
        except HermesError:
            self.close()
            raise
        return first

    def available(self) -> dict[int, WorkerClient]:
        """Without those that are known to be lost and wait for the lock to be removed: a request that is sent
        to them fails at once, and would be taken for one that ends its workers."""
        with self.lock:
            return {number: client for number, client in self._clients.items() if not client.is_lost}

    def wait_available(self) -> dict[int, WorkerClient]:
        """Waits until a worker is available. HostError: none will be, or the fleet was closed."""
        with self._changed:
            while not self._clients:
                self.check_alive()
                self._changed.wait()
            return dict(self._clients)

    def check_alive(self) -> None:
        """HostError: no worker is left, and none will be started again."""
        with self.lock:
            given_up = [number for number, count in self._failures.items() if count >= _MAX_STARTS]
            if self._closed or len(given_up) == len(self._placements):
                raise HostError(
                    "the engine has no worker left: each ended before it was ready, several times",
                    "see the engine's log, then start it again",
                )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            clients = [*self._clients.values(), *self._starting.values()]
            self._changed.notify_all()
        for client in clients:
            client.kill()
            client.process.wait()

    def _check_memory(self, first: WorkerReady) -> None:
        """EngineCapacityError: the other replicas would not fit into this machine's memory."""
        import torch

        from hermes.engine.memory import free_bytes

        further = len(self._placements) - 1
        if first.device != "cpu" or not further or not self._on_host:
            return
        options = self._placements[0].settings.engine
        ranks = options.tensor_parallel_size
        one_copy = options.quantize is not None or ranks > 1
        needed = ranks * cpu_bytes_needed(first.base_bytes, one_copy=one_copy)
        free = free_bytes(torch.device("cpu"))
        if further * needed > free:
            raise EngineCapacityError(
                f"{further + 1} replicas do not fit: each needs {needed / 2**30:.1f} GiB, and beside one "
                f"{free / 2**30:.1f} GiB are free.",
                f"Use --replicas {1 + free // needed} or less, or a smaller model.",
            )

    def _launch(self, number: int) -> WorkerClient:
        placement = self._placements[number]
        name = f"worker {number + 1}"
        with self.lock:
            client = WorkerClient(name, placement.settings, placement.start, self._lost)
            self._starting[number] = client
        client.ready.add_done_callback(lambda future: self._join(number, client, future.exception() is None))
        return client

    def _join(self, number: int, client: WorkerClient, loaded: bool) -> None:
        with self._changed:
            if not loaded or self._closed:
                return
            self._starting.pop(number, None)
            self._failures[number] = 0
            self._on_ready(number, client)
            self._clients[number] = client
            self._changed.notify_all()
        _logger.info("engine %s is ready, pid %d", client.name, client.pid)
        self._on_change()

    def _lost(self, client: WorkerClient) -> None:
        with self._changed:
            number = next(
                key for key, candidate in {**self._clients, **self._starting}.items() if candidate is client
            )
            self._clients.pop(number, None)
            self._starting.pop(number, None)
            if self._closed or self.first is None:
                return
            self._on_lost(client)
            self._failures[number] = failures = self._failures.get(number, 0) + 1
            self._changed.notify_all()
        if failures >= _MAX_STARTS:
            _logger.error("engine %s %s; it is given up", client.name, client.describe_end())
            self._on_change()
            return
        _logger.warning("engine %s %s; it is started again", client.name, client.describe_end())
        threading.Thread(
            target=self._restart,
            args=(number, 0.25 * 4 ** (failures - 1)),
            name="hermes-restart",
            daemon=True,
        ).start()

    def _restart(self, number: int, delay_s: float) -> None:
        time.sleep(delay_s if self._failures.get(number, 0) > 1 else 0.0)
        with self.lock:
            if not self._closed:
                self._launch(number)
