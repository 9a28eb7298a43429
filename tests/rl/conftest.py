"""A tiny model, made once, and homes that train it. Whatever a test leaves running is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rl.world import kill_runs, make_home, tiny_model

MakeHome = Callable[..., Path]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def home_with(tmp_path: Path, model: Path) -> Iterator[MakeHome]:
    """Makes homes; their runs do not outlive the test."""
    homes: list[Path] = []

    def make(name: str = "home", **values: Any) -> Path:
        homes.append(make_home(tmp_path / name, model, **values))
        return homes[-1]

    yield make
    for home in homes:
        kill_runs(home)
