"""A trajectory API for the environments of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.serving import BATCH
from tests.ports import free_port
from tests.rollouts.conftest import Client
from tests.rollouts.kill_load import start


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Client]:
    """A server whose trainer has asked for its first batch."""
    port = free_port()
    process = start(port, tmp_path / "state")
    client = Client(port)
    client.start(batch_size=BATCH)
    yield client
    process.kill()
    process.wait()
