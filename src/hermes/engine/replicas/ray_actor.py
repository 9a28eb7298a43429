"""The Ray actor that is a worker. It connects back to its front, and exchanges the messages of any worker."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import version
from multiprocessing.connection import Client

from hermes import __version__
from hermes.errors import HostError

Versions = dict[str, str]


def installed_versions() -> Versions:
    """What has to be equal on all nodes: what is sent, and what computes."""
    return {
        "hermes": __version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": version("torch").partition("+")[0],
    }


class EngineActor:
    """`serve` returns when the front is gone."""

    def serve(self, address: tuple[str, int], secret: bytes, token: str, versions: Versions) -> None:
        node = installed_versions()
        names = [name for name in node if node[name] != versions[name]]
        if names:
            differences = ", ".join(f"{name} {node[name]} instead of {versions[name]}" for name in names)
            raise HostError(f"a Ray node has other versions than the engine's front: {differences}")
        from hermes.engine.replicas.worker import serve_front

        connection = Client(address, authkey=secret)
        connection.send((token, os.getpid()))
        with contextlib.suppress(EOFError, ConnectionError):
            serve_front(connection)
        os._exit(0)  # the engine's threads do not end by themselves
