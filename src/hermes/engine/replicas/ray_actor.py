"""The Ray actor that is a worker. It connects back to its front, and exchanges the messages of any worker."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import Client

from hermes.cluster.actors import Versions, check_versions

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
