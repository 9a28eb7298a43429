"""RLHF with real processes: trajectory API, reward model, environment and trainer, against a tiny model."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from hermes.core import Message
from hermes.rl.process import ProcessId
from hermes.store import Writer
from hermes.training.start_weights import find_weights
from tests.engine.http.engine_process import Server
from tests.records import record
from tests.training.preference.conftest import Hermes, write_pairs
from tests.training.world import metrics
from tests.waiting import wait_until_ended

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
@pytest.mark.timeout(600)
def test_a_second_signal_ends_the_run_at_once_with_its_processes(
    hermes: Hermes, chat_engine: Server, chat_model: Path, files: dict[str, str], tmp_path: Path
) -> None:
    reward_model(hermes, chat_model, files)
    process = hermes(*rlhf(chat_model, files, "--num-steps", "500"))
    process.until("step 1/500")
    record = tmp_path / "home" / "runs" / "r" / "rlhf_processes.json"
    launched = [entry["pid"] for entry in json.loads(record.read_text())]
    for number in (signal.SIGINT, signal.SIGTERM):
        process.process.send_signal(number)
    process.wait(60)
    assert "stopped at once; " in process.output, process.output
    wait_until_ended(launched)


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
@pytest.mark.timeout(900)
def test_a_truth_that_falls_while_the_reward_rises_ends_the_run(
    hermes: Hermes, chat_engine: Server, chat_model: Path, files: dict[str, str], tmp_path: Path
) -> None:
    """The reward is higher for what the reward model likes; the truth likes variety, which gets lost."""
    Path(files["truth"].removesuffix(":share")).write_text(
        "def share(ctx):\n    return len(set(ctx.answer)) / max(1, len(ctx.answer))\n"
    )
    reward_model(hermes, chat_model, files)
    steps = ("--num-steps", "60", "--kl", "0", "--learning-rate", "0.01", "--batch-size", "16")
    process = hermes(*rlhf(chat_model, files, *steps))
    assert process.wait(600) == 0, process.output
    assert "over-optimised: the reward model's score rose by" in process.output
    assert len(metrics(tmp_path / "home" / "runs" / "r")) < 60


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_trainer_takes_a_start_a_seed_and_an_evaluation(
    hermes: Hermes, chat_engine: Server, chat_model: Path, files: dict[str, str], tmp_path: Path
) -> None:
    single = tmp_path / "single.jsonl"
    answers = [{"prompt": f"q{n}", "completion": "az"[n % 2] * 4, "label": n % 2 == 0} for n in range(24)]
    single.write_text("".join(json.dumps(row) + "\n" for row in answers))
    common = ("--base-model", str(chat_model), "--rank", "8", "--seed", "5", "--eval-every", "1")
    offline = (*common, "--batch-size", "6", "--max-steps", "2")
    held_out = {"dpo": files["held_out"], "kto": str(single), "reward": files["held_out"]}
    trained = {"dpo": files["pairs"], "kto": str(single), "reward": files["pairs"]}
    runs = tmp_path / "home" / "runs"
    warm = hermes("train", "dpo", files["pairs"], *offline, "--name", "warm")
    assert warm.wait(300) == 0, warm.output
    weights = find_weights("warm", tmp_path / "home")
    for kind, file in trained.items():
        words = ("train", kind, file, *offline, "--eval-file", held_out[kind], "--start", "warm")
        process = hermes(*words, "--name", f"after-{kind}")
        assert process.wait(300) == 0, process.output
        folder = runs / f"after-{kind}" / ("member-0" if kind == "reward" else "")
        check_start(folder, weights)
        assert all("eval/loss" in row for row in metrics(folder))
    words = ("--reward-model", "after-reward", "--start", "warm", "--seed", "5", "--num-steps", "2")
    evaluated = ("--eval-every", "1", "--eval-command", "echo '{\"score\": 0.5}'")
    process = hermes(*rlhf(chat_model, files, *words, *evaluated))
    assert process.wait(400) == 0, process.output
    check_start(runs / "r", weights)
    rows = metrics(runs / "r")
    assert [row["step"] for row in rows] == [0, 1, 2] and all(row["eval/score"] == 0.5 for row in rows)
    assert all("eval/preference" in row for row in rows[1:])


def check_start(folder: Path, weights: str) -> None:
    settings = json.loads((folder / "training.json").read_text())["settings"]
    assert settings["start"] == weights and settings["seed"] == 5


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", ["rlhf", "ppo"])
def test_a_reward_model_that_cannot_be_served_ends_the_run_with_the_reason(
    hermes: Hermes, chat_model: Path, files: dict[str, str], command: str
) -> None:
    process = hermes("train", command, *rlhf(chat_model, files)[2:])
    assert process.wait(300) != 0
    assert "there is no reward model called 'liked'" in process.output
