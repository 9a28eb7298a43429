"""Hermes's environments against the original's own API server, where that is installed.

Set HERMES_TEST_ATROPOS_RUN_API to its `run-api` script (in an environment of its own).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.world import SUMS, Running, Trainer, adder
from tests.ports import free_port
from tests.rollouts.conftest import RUN, Client
from tests.waiting import wait_until

ORIGINAL = os.environ.get("HERMES_TEST_ATROPOS_RUN_API", "")


@pytest.mark.skipif(not shutil.which(ORIGINAL or " "), reason="the original run-api is not installed")
def test_an_environment_of_ours_serves_a_trainer_through_the_original_api(
    bundled_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(bundled_home))
    client = Client(free_port())
    api = subprocess.Popen(
        [ORIGINAL, "--host", "127.0.0.1", "--port", str(client.port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _answers(client))
        client.post("/register", {**RUN, "batch_size": 4})
        trainer = Trainer(client)
        trainer.start()
        with adder() as model:
            url = f"http://127.0.0.1:{client.port}"
            flags = (f"--env.rollout_server_url={url}", f"--openai.base_url={model.base_url}")
            env = Running(
                "serve", SUMS, *flags, "--env.ensure_scores_are_not_same=false", "--env.total_steps=5"
            )
            assert env.ended() is None
        trainer.stop()
    finally:
        api.kill()
        api.wait()
    assert trainer.batches >= 3
    assert all(len(group["tokens"]) == 2 for group in trainer.groups)


def _answers(client: Client) -> bool:
    try:
        return bool(client.get("/") == {"message": "AtroposLib API"})
    except (OSError, AssertionError):
        return False
