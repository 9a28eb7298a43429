"""openenv-core itself: its servers under our environment, and its clients on a server of ours."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.envs.rewards.result import GraderError
from hermes.errors import HermesError, SandboxError
from tests.envs.openenv.world import FOLDER, call, opened, package_python, served

pytest.importorskip("websockets", reason="the package websockets of the extra 'envs' is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]
CLIENT = FOLDER / "openenv_client.py"


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter with openenv-core, without its web pages and its command line."""
    return str(package_python())


async def test_an_environment_of_the_package_is_played(home: Path, python: str) -> None:
    play = [call("guess", number=9), call("guess", number="x"), call("guess", number=1)]
    env = await opened(home, *play, package=str(FOLDER / "guess_env"), python=python)
    try:
        items = [await env.get_next_item() for _ in range(3)]
        rollouts = await asyncio.gather(*(env.run_item(items[0]) for _ in range(3)))
        for rollout in rollouts:
            assert rollout.reward.value == 0.75
            assert rollout.reward.detail == "step rewards: -0.25 1"
            contents = [message["content"] for message in rollout.result.messages]
            assert contents[0].endswith("hint: a number from 1 to 9, with seed 0\nleft: 3")
            assert contents[-1] == "hint: right\nleft: 1\nThe episode is over."
            assert "number: expected integer, got string" in contents[4]
        env.config.episode_reward = "last"
        assert (await env.run_item(items[0])).reward.value == 1
        env._policy().turns = (call("guess", number=1),)  # type: ignore[attr-defined]
        assert (await env.run_item(items[1])).reward.value == -0.25, "an episode that the policy left"
    finally:
        await env.close()


async def test_a_server_of_the_package_dies_hangs_or_raises(home: Path, python: str) -> None:
    folder = str(FOLDER / "guess_env")
    env = await opened(home, package=folder, python=python, step_timeout_s=3)
    try:
        item = await env.get_next_item()
        for number, problem in ((100, "was lost during 'step'"), (101, "gave no answer to 'step' for 3 s")):
            env._policy().turns = (call("guess", number=number),)  # type: ignore[attr-defined]
            with pytest.raises(SandboxError, match=problem):
                await env.run_item(item)
            env._policy().turns = (call("guess", number=1),)  # type: ignore[attr-defined]
            assert (await env.run_item(item)).reward.value == 1, "on a server that was started anew"
        env._policy().turns = (call("guess", number=102),)  # type: ignore[attr-defined]
        with pytest.raises(GraderError, match="the board is broken"):
            await env.run_item(item)
        env._policy().turns = (call("guess", number=102), call("guess", number=1))  # type: ignore[attr-defined]
        assert (await env.run_item(item)).reward.value == 1, "the environment goes on after it raised"
        (server,) = env._servers._servers  # type: ignore[union-attr]
        assert server is not None
    finally:
        await env.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(server.process.pid, signal.SIGCONT)


async def test_a_package_that_is_not_installed_is_named(home: Path, python: str) -> None:
    with pytest.raises(HermesError, match="no_such_env cannot be served: ModuleNotFoundError") as caught:
        await opened(home, package="no_such_env", python=python)
    assert "Is it installed" in caught.value.hint


def test_clients_of_the_package_play_an_environment_of_ours(home: Path, python: str) -> None:
    with served(FOLDER / "words.py") as (url, _):
        process = subprocess.run([python, str(CLIENT), url], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["1.0", "0.0", "1.0"]


def test_trls_trainer_trains_on_an_environment_of_ours(home: Path, python: str) -> None:
    """In this interpreter, which has TRL, with the package's client behind what it has itself."""
    (packages,) = Path(python).parent.parent.glob("lib/*/site-packages")
    with served(FOLDER / "words.py") as (url, _):
        command = [sys.executable, str(FOLDER / "trl_training.py"), url, str(packages)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-3:] == ["reset look submit_answer"] * 2 + ["1 1.0"]
