"""A trainer without a batch: how long it waits, what it logs, and what it leaves when it ends."""

from __future__ import annotations

import pytest

from hermes.training.data.api import BatchWait, NoBatch, NoEnvironmentError
from tests.training.conftest import StartTrainer
from tests.training.world import Environment, ask, metrics

DESERTED = NoBatch("no groups are queued", envs_connected=0)
SUPPLIED = NoBatch("4 of 8 sequences are queued", envs_connected=1)
UNKNOWN = NoBatch("nothing is queued")


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def wait_at(clock: Clock, patience_s: float = 100.0) -> BatchWait:
    return BatchWait(patience_s, clock)


def test_a_line_every_thirty_seconds_tells_why_there_is_no_batch() -> None:
    clock = Clock()
    wait = wait_at(clock)
    assert wait.line_if_due(SUPPLIED) is None
    clock.now_s = 31.0
    assert wait.line_if_due(SUPPLIED) == "waiting for a batch: 4 of 8 sequences are queued"
    assert wait.line_if_due(SUPPLIED) is None


def test_without_an_environment_the_line_says_so_and_when_the_run_ends() -> None:
    clock = Clock()
    wait = wait_at(clock)
    wait.line_if_due(DESERTED)
    clock.now_s = 40.0
    line = wait.line_if_due(DESERTED)
    assert line is not None
    assert "no environment is connected (start one: hermes env serve NAME)" in line
    assert "this run ends in 60 s" in line
    clock.now_s = 100.0
    with pytest.raises(NoEnvironmentError, match=r"no environment was connected .* for 100 s"):
        wait.line_if_due(DESERTED)


@pytest.mark.parametrize("answer", [SUPPLIED, UNKNOWN])
def test_the_wait_has_no_limit_while_an_environment_is_connected_or_nobody_tells(answer: NoBatch) -> None:
    clock = Clock()
    wait = wait_at(clock)
    wait.line_if_due(DESERTED)
    clock.now_s = 99.0
    wait.line_if_due(answer)
    for clock.now_s in (150.0, 1e6):
        assert wait.line_if_due(answer) is not None
    wait.line_if_due(DESERTED)
    clock.now_s += 99.0
    assert wait.line_if_due(DESERTED) is not None, "the patience starts again"


def test_a_trainer_whose_environment_is_gone_saves_its_steps_and_ends_with_the_reason(
    start: StartTrainer, environment: Environment
) -> None:
    trainer = start(
        *("grpo", "--name", "deserted", "--num-steps", "5", "--batch-size", "4"),
        *("--api-url", environment.api_url, "--env-patience", "2", "--checkpoint-every", "100"),
    )
    while (weights := environment.newest()) is None:
        pass
    environment.post(environment.rollouts(weights))
    assert trainer.wait() == 1
    last_lines = trainer.output.splitlines()[-2:]
    assert last_lines[0].startswith("error: no environment was connected to the trajectory API for 2 s")
    assert "hermes env serve" in last_lines[1]
    folder = trainer.log.parent / "runs" / "deserted"
    assert [row["step"] for row in metrics(folder)] == [1]
    leases = ask(environment.api_url, "GET", "/status")["leases"]
    assert leases == {"outstanding": 0, "lost": 0}, "the step was saved before the end"
