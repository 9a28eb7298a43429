"""A tiny model, made once, and homes that train it. Whatever a test leaves running is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes.rl.run import RlRun, all_runs
from tests.rl.world import make_home, tiny_model

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
        for run in all_runs(home):
            _kill(run)


def _kill(run: RlRun) -> None:
    status = run.status()
    if status.state.ended:
        return
    run.stop_path.touch()
    if status.supervisor is not None and status.supervisor.alive():
        os.killpg(os.getpgid(status.supervisor.pid), signal.SIGKILL)
    for part in status.processes.values():
        if part.process_id is not None and part.process_id.alive():
            os.killpg(part.process_id.pid, signal.SIGKILL)
