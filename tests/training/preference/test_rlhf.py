"""RLHF with real processes: trajectory API, reward model, environment and trainer, against a tiny model."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hermes.core import Message
from hermes.rl.supervise.process import ProcessId
from hermes.store import Writer
from tests.engine.http.engine_process import Server
from tests.records import record
from tests.training.preference.conftest import Hermes, write_pairs
from tests.training.world import metrics

STEPS = 6


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    prompts, function = tmp_path / "prompts.jsonl", tmp_path / "truth.py"
    prompts.write_text("".join(json.dumps({"prompt": f"q{number}"}) + "\n" for number in range(16)))
    function.write_text("def share(ctx):\n    return ctx.answer.count('a') / max(1, len(ctx.answer))\n")
    return {
        "prompts": str(prompts),
        "truth": f"{function}:share",
        "pairs": str(write_pairs(tmp_path / "pairs.jsonl", 18)),
        "held_out": str(write_pairs(tmp_path / "held.jsonl", 8, seed=9)),
    }


def reward_model(hermes: Hermes, model: Path, files: dict[str, str]) -> None:
    trainer = hermes(
        *("train", "reward", files["pairs"], "--eval-file", files["held_out"], "--base-model", str(model)),
        *("--name", "liked", "--rank", "8", "--learning-rate", "0.01", "--batch-size", "6", "--epochs", "2"),
    )
    assert trainer.wait(300) == 0, trainer.output


def rlhf(model: Path, files: dict[str, str], *more: str) -> tuple[str, ...]:
    return (
        *("train", "rlhf", "--reward-model", "liked", "--prompts", files["prompts"]),
        *("--true-reward", files["truth"], "--preferences", files["held_out"], "--name", "r"),
        *("--base-model", str(model), "--rank", "8", "--learning-rate", "0.003", "--num-steps", str(STEPS)),
        *("--batch-size", "8", "--rollouts-per-prompt", "4", "--answer-tokens", "6", "--eval-every", "2"),
        *("--checkpoint-every", "2", *more),
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_run_resumes_and_logs_proxy_truth_and_kl_side_by_side(
    hermes: Hermes, chat_engine: Server, chat_model: Path, files: dict[str, str], tmp_path: Path
) -> None:
    reward_model(hermes, chat_model, files)
    first = hermes(*rlhf(chat_model, files))
    first.until(rf"step 3/{STEPS}")
    folder = tmp_path / "home" / "runs" / "r"
    left = [ProcessId.from_json(entry) for entry in json.loads((folder / "rlhf_processes.json").read_text())]
    first.kill()
    assert any(process is not None and process.alive() for process in left), "its processes outlive it"
    second = hermes(*rlhf(chat_model, files))
    assert second.wait(400) == 0, second.output
    assert f"step {STEPS}/{STEPS}" in second.output and f"step 2/{STEPS}" not in second.output
    rows = metrics(folder)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), "every step once"
    for row in rows:
        assert {"reward/mean", "reward/true", "kl/reference"} <= row.keys()
        assert 0 <= row["reward/mean"] <= 1 and 0 <= row["reward/true"] <= 1
    assert [int(row["step"]) for row in rows if "eval/preference" in row] == [2, 4, 6]
    assert abs(rows[0]["kl/reference"]) < 1e-3, "the policy starts at its reference"
    leases = [row["data/lease_id"] for row in rows]
    assert len(set(leases)) == STEPS, "no batch was trained twice"
    time.sleep(1)
    assert not any(process is not None and process.alive() for process in left), "nothing is left running"
    assert not (folder / "rlhf_processes.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stored_prompts_the_agent_loop_and_a_critic_that_is_killed_and_resumes(
    hermes: Hermes, chat_engine: Server, chat_model: Path, files: dict[str, str], tmp_path: Path
) -> None:
    with Writer(tmp_path / "home" / "hermes.db") as writer:
        for number in range(16):
            record(writer, [Message.user(f"q{number}"), Message.assistant("a")], tools=(), run_id="asked")
    reward_model(hermes, chat_model, files)
    words = list(rlhf(chat_model, files, "--critic", "--critic-rate", "0.01", "--run", "asked"))
    place = words.index("--prompts")
    del words[place : place + 2]
    words += ["--max-turns", "2", "--toolset", "math"]
    first = hermes(*words)
    first.until(rf"step 3/{STEPS}")
    first.kill()
    second = hermes(*words)
    assert second.wait(400) == 0, second.output
    folder = tmp_path / "home" / "runs" / "r"
    rows = metrics(folder)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), "every step once"
    for row in rows:
        assert 0 < row["critic/value"] < 1 and row["critic/loss"] > 0 and row["critic/grad_norm"] > 0
        assert row["health/group_signal"] == 1.0, "every answer has an advantage"
    assert len((folder / "prompts.jsonl").read_text().splitlines()) == 16
    assert list(json.loads((folder / "critic.json").read_text())) == [str(STEPS)], "one critic is kept"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_reward_model_that_cannot_be_served_ends_the_run_with_the_reason(
    hermes: Hermes, chat_model: Path, files: dict[str, str]
) -> None:
    process = hermes(*rlhf(chat_model, files))
    assert process.wait(300) != 0
    assert "there is no reward model called 'liked'" in process.output
