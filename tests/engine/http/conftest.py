"""One engine for a whole test run of a worker, and a client of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker

from tests.engine.http.engine_process import KEY, Server, launch, make_tiny

Start = Callable[..., Server]
MODEL = "tiny"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / MODEL)


@pytest.fixture(scope="session")
def shared(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = launch(tiny_folder, tmp_path_factory.mktemp("engine"), "--max-length", "256")
    yield server
    assert server.stop() == 0


@pytest.fixture
def start(tiny_folder: Path) -> Iterator[Start]:
    """Starts engines; each is gone at the end of the test."""
    started: list[Server] = []

    def one(state_dir: Path, *arguments: str, **variables: str) -> Server:
        started.append(launch(tiny_folder, state_dir, *arguments, **variables))
        return started[-1]

    yield one
    for server in started:
        server.kill()


@pytest.fixture
def connect() -> Iterator[Callable[..., tinker.ServiceClient]]:
    """Makes clients of a server; each says goodbye at the end."""
    clients: list[tinker.ServiceClient] = []

    def one(server: Server, **more: Any) -> tinker.ServiceClient:
        clients.append(tinker.ServiceClient(base_url=server.url, api_key=KEY, **more))
        return clients[-1]

    yield one
    for client in clients:
        client.close("success").result(timeout=30)


@pytest.fixture
def client(shared: Server, connect: Callable[..., tinker.ServiceClient]) -> tinker.ServiceClient:
    return connect(shared)


@pytest.fixture
def model(tiny_folder: Path) -> str:
    """What the engine calls its base model."""
    return str(tiny_folder)


@pytest.fixture
def rest(shared: Server) -> tinker.RestClient:
    return tinker.RestClient(base_url=shared.url, api_key=KEY)
