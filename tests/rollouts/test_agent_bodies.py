"""What our own agent environments post takes the server's fast path."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.compat.world import Running, Trainer
from tests.envs.templates import bundled_tokenizer
from tests.envs.world import call, policy
from tests.rollouts.bodies import check
from tests.rollouts.conftest import Launch
from tests.rollouts.recording import recording_proxy

CALCULATOR = Path(__file__).parents[2] / "src" / "hermes" / "envs" / "builtin" / "calculator.py"


def test_what_an_agent_environment_posts_is_recognised(
    launch: Launch, bundled_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(bundled_home / "models")
    monkeypatch.setenv("HERMES_HOME", str(home))
    client, counter = launch().client, itertools.count()

    def says(prompt: str) -> str:
        if "<tool_response>" in prompt.rpartition("<|im_start|>user")[2]:
            return "The answer is 4." if next(counter) % 2 else 'It "is"\n\\ é — unclear {[.'
        return call("calculator", expression="2 + 2")

    client.start(batch_size=4)
    trainer = Trainer(client)
    trainer.start()
    with (
        policy(bundled_tokenizer(bundled_home), says) as model,
        recording_proxy(client.port) as (url, bodies),
    ):
        flags = {
            "env.rollout_server_url": url,
            "env.tokenizer_name": "hermes/smollm2",
            "env.group_size": 2,
            "env.total_steps": 2,
            "env.ensure_scores_are_not_same": False,
            "env.use_wandb": False,
            "openai.base_url": model.base_url,
            "openai.server_type": "sglang",
        }
        env = Running("serve", CALCULATOR, *(f"--{name}={value}" for name, value in flags.items()))
        assert env.ended() is None
    trainer.stop()
    assert len(bodies) >= 4
    for body in bodies:
        group = json.loads(body)
        assert group["overrides"][0]["trajectory_id"] and group["generation_params"] == {"temperature": 1.0}
        assert check(body), body[:2000]
