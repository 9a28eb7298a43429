"""Workers as actors of a Ray cluster: Ray places them and reports their deaths; messages take their own way.

The front listens on the address that its node has in the cluster. An actor connects to it with a secret that
it got through Ray, and is then a worker like any other. What is sent is authenticated, not encrypted: the
network between the nodes has to be closed, as Ray's own has to be.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import secrets
import socket
import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any

from hermes.cluster.actors import ActorEnd, Versions, check_versions, installed_versions, wait_for_end
from hermes.engine.info import EngineOptions
from hermes.engine.replicas.fleet import WorkerPlacement
from hermes.engine.replicas.process import WorkerSettings
from hermes.errors import UsageError
from hermes.safety.access import TokenScheme
from hermes.serving import listen

_POLL_S = 0.2
_SCHEME = TokenScheme(
    "", "become a worker", "the secret that Ray handed to the actor", lambda headers, token: False
)
_Arrival = queue.SimpleQueue["tuple[Connection[Any, Any], int]"]


class RayPlaces:
    """Places for workers on a cluster, and the address to which they connect."""

    def __init__(self, ray: Any) -> None:
        """`ray`: the module, connected to a cluster."""
        self.ray = ray
        self._stack = ExitStack()
        secret = secrets.token_hex(32)
        listener = self._stack.enter_context(listen(ray.util.get_node_ip_address(), 0, _SCHEME, secret))
        self._secret, self._server = secret.encode(), listener.socket
        self._arrivals: dict[str, _Arrival] = {}
        threading.Thread(target=self._accept, name="hermes-ray-accept", daemon=True).start()

    def close(self) -> None:
        self._stack.close()

    def auto_replicas(self, ranks: int) -> int:
        """One a GPU, or for every `ranks` GPUs of a node; in a cluster without GPUs one a node."""
        if self._total("GPU"):
            return max(1, sum(self._node_capacities("GPU", ranks)))
        return max(1, sum(capacity > 0 for capacity in self._node_capacities("CPU", ranks)))

    def place(self, options: EngineOptions, replicas: int) -> list[WorkerPlacement]:
        """UsageError: the nodes of the cluster have too few cores for the replicas, or too few GPUs for their
        ranks. The ranks of a replica are on one node."""
        gpus, cores = self._total("GPU"), int(self._total("CPU"))
        ranks = options.tensor_parallel_size
        self._check_room("CPU", "core", replicas, ranks)
        if gpus and options.device != "cpu" and ranks > 1:
            self._check_room("GPU", "GPU", replicas, ranks)
            settings = WorkerSettings(replace(options, device="cuda"), 0)
            resources: dict[str, Any] = {"num_cpus": ranks, "num_gpus": ranks}
        elif gpus and options.device != "cpu":
            share = min(1.0, gpus / replicas)
            settings = WorkerSettings(replace(options, device="cuda", device_share=share), 0)
            resources = {"num_cpus": 1, "num_gpus": share}
        else:
            settings = WorkerSettings(options, max(1, cores // (replicas * ranks)))
            resources = {"num_cpus": ranks, "scheduling_strategy": "SPREAD"}
        return [WorkerPlacement(settings, partial(RayProcess, self, resources)) for _ in range(replicas)]

    def start(self, resources: dict[str, Any]) -> tuple[Any, Any, _Arrival]:
        """The actor, the reference to its end, and where its connection arrives."""
        token, arrival = secrets.token_hex(16), _Arrival()
        self._arrivals[token] = arrival
        actor = self.ray.remote(max_restarts=0, **resources)(EngineActor).remote()
        address = self._server.getsockname()[:2]
        return actor, actor.serve.remote(address, self._secret, token, installed_versions(COMPUTES)), arrival

    def _total(self, resource: str) -> float:
        return float(self.ray.cluster_resources().get(resource, 0.0))

    def _node_capacities(self, resource: str, ranks: int) -> list[int]:
        """How many replicas of so many ranks each node holds."""
        alive = (node["Resources"] for node in self.ray.nodes() if node["Alive"])
        return [int(resources.get(resource, 0.0)) // ranks for resources in alive]

    def _check_room(self, resource: str, name: str, replicas: int, ranks: int) -> None:
        """UsageError: Ray would wait for a node that has enough of the resource."""
        room = sum(self._node_capacities(resource, ranks))
        if replicas <= room:
            return
        fix = f"use --replicas {room} or less, or add nodes to the cluster"
        if ranks == 1:
            problem = f"{replicas} replicas need as many {name}s, and the Ray cluster has {room}"
        else:
            problem = (
                f"a replica of {ranks} processes needs {ranks} {name}s on one node, and the nodes of the Ray "
                f"cluster have room for {room} of {replicas}"
            )
        if room == 0:
            fix = f"add nodes to the cluster that have {ranks} {name}{'s' * (ranks > 1)} or more"
            fix += ", or use a smaller --tensor-parallel-size" if ranks > 1 else ""
        raise UsageError(problem, fix)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._server.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=self._greet, args=(accepted,), daemon=True).start()

    def _greet(self, accepted: socket.socket) -> None:
        """Hands the connection to the process that waits for it; drops one that does not know the secret."""
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection: Connection[Any, Any] = Connection(accepted.detach())
        try:
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            token, pid = connection.recv()
            self._arrivals.pop(token).put((connection, pid))
        except (multiprocessing.AuthenticationError, EOFError, OSError, KeyError):
            connection.close()


class RayProcess:
    """One actor, as its front sees it."""

    def __init__(self, places: RayPlaces, resources: dict[str, Any]) -> None:
        self.pid = 0
        """On its node; 0 until it has connected."""
        self._ray = places.ray
        self._actor, self._serving, self._arrival = places.start(resources)
        self._ended = threading.Event()
        self._end = ActorEnd("")
        self._connection: Connection[Any, Any] | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="hermes-ray-watch", daemon=True).start()

    def connect(self) -> Connection[Any, Any]:
        while True:
            try:
                connection, self.pid = self._arrival.get(timeout=_POLL_S)
            except queue.Empty:
                if not self._ended.is_set():
                    continue
                raise self._end.problem or ConnectionError(self._end.text) from None
            with self._lock:
                self._connection = connection
                if self._ended.is_set():
                    _shut_down(connection)
            return connection

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    def describe_end(self) -> str:
        self._ended.wait()
        return self._end.text

    def _watch(self) -> None:
        """Until Ray reports the actor's end. A lost node closes no connection, so that is done here."""
        self._end = wait_for_end(self._ray, lambda: self._ray.get(self._serving))
        with self._lock:
            self._ended.set()
            if self._connection is not None:
                _shut_down(self._connection)


def _shut_down(connection: Connection[Any, Any]) -> None:
    """Wakes the thread that reads from the connection, with the end of the stream."""
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as stream:
            stream.shutdown(socket.SHUT_RDWR)
    except OSError:  # the reader has closed it
        return


COMPUTES = "torch"
"""The package that has to have one version on all nodes."""


class EngineActor:
    """`serve` returns when the front is gone."""

    def serve(self, address: tuple[str, int], secret: bytes, token: str, versions: Versions) -> None:
        check_versions(versions, COMPUTES)
        from hermes.engine.replicas.worker import serve_front

        connection = Client(address, authkey=secret)
        connection.send((token, os.getpid()))
        with contextlib.suppress(EOFError, ConnectionError):
            serve_front(connection)
        os._exit(0)  # the engine's threads do not end by themselves
