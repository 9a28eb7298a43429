"""kill -9 of trainer, engine and API: the run ends at the same step, every batch is trained exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.http.engine_process import Server, launch
from tests.training.books import check_served, check_weights, trained_leases
from tests.training.conftest import StartTrainer
from tests.training.world import Process, ask, group, metrics, start_api, when_there

STEPS = 12
BATCH = 4


def scripted(number: int) -> dict[str, object]:
    """A group that tells which it is by its scores; nobody has to sample for it."""
    tokens = [[259 + number % 200, 300 + index, 310] for index in range(BATCH)]
    stated = [[-6.0, -6.0, -6.0]] * BATCH
    scores = [float(number), *[0.0] * (BATCH - 1)]
    # With a penalty the logprobs cannot be computed again, so these, which are made up, are not audited.
    return group(tokens, stated, scores, generation_params={"repetition_penalty": 1.1})


@pytest.fixture
def api_home(tmp_path: Path) -> Iterator[list[Process]]:
    running: list[Process] = []
    yield running
    for process in running:
        process.kill()


def fill(url: str, registered: Process) -> None:
    """All groups of the run, once there is a trainer."""
    registered.until(r"run \S+:")
    for number in range(1, STEPS + 1):
        when_there(url, "POST", "/scored_data", scripted(number))


def train(start: StartTrainer, api_url: str, **more: str) -> Process:
    given = ("--name", "r", "--api-url", api_url, "--num-steps", str(STEPS), "--batch-size", str(BATCH))
    return start("grpo", *given, "--checkpoint-every", "5", "--learning-rate", "0.01", **more)


def order_of(folder: Path) -> list[float]:
    """Which group each step was made of."""
    return [row["reward/max"] for row in metrics(folder)]


@pytest.mark.slow
def test_a_trainer_killed_again_and_again_trains_every_batch_once_and_in_order(
    start: StartTrainer, tmp_path: Path, api_home: list[Process], engine: Server
) -> None:
    process, url = start_api(tmp_path / "a")
    api_home.append(process)
    losses = {}
    for name in ("whole", "cut"):
        ask(url, "GET", "/reset_data", text=True)
        home = tmp_path / "home" / "runs" / "r"
        trainer = train(start, url)
        fill(url, trainer)
        for step in (2, 7) if name == "cut" else ():
            trainer.until(rf"step {step}/{STEPS}")
            trainer.kill()
            trainer = train(start, url)
        assert trainer.wait() == 0, trainer.output
        assert order_of(home) == list(range(1, STEPS + 1))
        losses[name] = [row["logprobs/mean_training"] for row in metrics(home)]
        check_served(url, trained_leases(home, STEPS))
        check_weights(home, engine.state_dir)
        home.rename(tmp_path / name)
    assert losses["cut"] == pytest.approx(losses["whole"], rel=1e-5)


def test_an_api_and_a_trainer_that_are_killed_and_come_back_cost_nothing(
    start: StartTrainer, tmp_path: Path, api_home: list[Process], engine: Server
) -> None:
    process, url = start_api(tmp_path / "a")
    api_home.append(process)
    trainer = train(start, url)
    fill(url, trainer)
    trainer.until(rf"step 3/{STEPS}")
    process.kill()
    again, same = start_api(tmp_path / "a", int(url.rpartition(":")[2]))
    api_home.append(again)
    assert same == url
    trainer.until(rf"step 7/{STEPS}")
    trainer.kill()
    trainer = train(start, url)
    assert trainer.wait() == 0, trainer.output
    home = tmp_path / "home" / "runs" / "r"
    assert order_of(home) == list(range(1, STEPS + 1))
    assert trained_leases(home, STEPS) == list(range(1, STEPS + 1))
    check_served(url, trained_leases(home, STEPS))
    check_weights(home, engine.state_dir)


@pytest.mark.slow
def test_training_continues_from_the_checkpoint_after_the_engine_was_killed_and_restarted(
    start: StartTrainer, tmp_path: Path, tiny: Path, api_home: list[Process]
) -> None:
    process, url = start_api(tmp_path / "a")
    api_home.append(process)
    engine = launch(tiny, tmp_path / "engine")
    try:
        trainer = train(start, url, url=engine.url)
        fill(url, trainer)
        trainer.until(rf"step 7/{STEPS}")
        engine.kill()
        engine = launch(tiny, tmp_path / "engine", "--port", engine.url.rpartition(":")[2])
        code = trainer.wait()
        assert code == 0, trainer.output
        home = tmp_path / "home" / "runs" / "r"
        state = json.loads((home / "training.json").read_text())
        assert state["kept"][-1][0] == STEPS and state["finished"] == "all steps made"
        # Steps after the checkpoint were made again, with the same batches.
        assert order_of(home) == list(range(1, STEPS + 1))
        check_served(url, trained_leases(home, STEPS))
        check_weights(home, engine.state_dir)
    finally:
        engine.kill()
