"""API, engine, trainer and environment started one by one, as the documentation shows, with short leases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.http.engine_process import Server, launch
from tests.rl.parts import Parts
from tests.training.world import ask, metrics

STEPS = 6


@pytest.fixture
def engine(model: Path, tmp_path: Path) -> Iterator[Server]:
    server = launch(model, tmp_path / "engine")
    yield server
    server.kill()


@pytest.fixture
def parts(engine: Server, model: Path, tmp_path: Path) -> Iterator[Parts]:
    parts = Parts(tmp_path / "home", engine, model, STEPS)
    yield parts
    parts.close()


@pytest.mark.slow
def test_a_run_much_longer_than_its_leases_trains_every_batch_once(parts: Parts, tmp_path: Path) -> None:
    """The first checkpoint is the last step, so every batch of the run is leased until its end."""
    trainer = parts.trainer("--lease", "1")
    env = parts.env(total_steps=STEPS - 1)
    assert trainer.wait() == 0, trainer.output
    rows = metrics(tmp_path / "home" / "runs" / "run")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["data/lease_id"] for row in rows] == list(range(1, STEPS + 1)), "each batch once"
    assert env.wait() == 0, env.output
    status = ask(parts.url, "GET", "/status")
    assert (status["current_step"], status["leases"]) == (STEPS, {"outstanding": 0, "lost": 0})


@pytest.mark.slow
def test_an_environment_that_ends_early_ends_the_training_with_the_reason_and_it_can_be_continued(
    parts: Parts, tmp_path: Path
) -> None:
    env = parts.env(total_steps=2)
    env.until("wait for trainer to start|no trainer yet|registered")
    trainer = parts.trainer("--env-patience", "5")
    assert env.wait() == 0
    assert trainer.wait() == 1
    assert "error: no environment was connected to the trajectory API for 5 s" in trainer.output
    folder = tmp_path / "home" / "runs" / "run"
    trained = [row["step"] for row in metrics(folder)]
    assert 0 < len(trained) < STEPS
    assert ask(parts.url, "GET", "/status")["leases"]["outstanding"] == 0, "what was trained is saved"
    resumed = parts.trainer()
    parts.env(total_steps=STEPS - 1)
    assert resumed.wait() == 0, resumed.output
    assert [row["step"] for row in metrics(folder)] == list(range(1, STEPS + 1))
