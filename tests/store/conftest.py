from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.store import Writer


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "home" / "hermes.db"


@pytest.fixture
def writer(db: Path) -> Iterator[Writer]:
    with Writer(db) as opened:
        yield opened
