"""Real versions of verifiers: its own examples, with exact tokens, and trained on the CPU at test size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes.compat.verifiers.env import VerifiersEnv
from hermes.envs.tokenise import load_tokenizer
from hermes.errors import HermesError
from tests.compat.verifiers.packages import classic_python, examples, verifiers_python
from tests.compat.verifiers.world import assert_exact, make, speaker
from tests.ports import free_port
from tests.recipes.scripts import RECIPES
from tests.rl.world import tiny_model, tiny_tokenizer
from tests.training.world import start_api

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CALL = '<tool_call>\n{"name": "echo_back", "arguments": {"message": "hello world"}}\n</tool_call><|im_end|>'
FINAL = "<answer>hello world [ok-7f3]</answer><|im_end|>"
CLASSIC = """
import verifiers as vf
from datasets import Dataset

def load_environment(numbers=(2, 3)):
    rows = [{"question": f"Double {n}.", "answer": str(2 * n)} for n in numbers]
    def right(completion, answer, **_):
        return float(answer in completion[-1]["content"])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[right]))
"""


class Encoding:
    def __init__(self, folder: Path) -> None:
        tiny_tokenizer(folder, 8192)
        self.folder = folder
        self._tokenizer = load_tokenizer(str(folder))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, ids: object) -> str:
        return str(self._tokenizer.decode(ids))  # type: ignore[arg-type]


@pytest.fixture
def encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Encoding:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return Encoding(tmp_path / "tokenizer")


async def test_a_taskset_with_a_tool_server_trains_exactly_what_was_sampled(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(examples()))
    with speaker(encoding.encode, encoding.decode, CALL, FINAL) as server:
        env = make("echo-tool-v1", server.base_url, encoding.folder, str(verifiers_python()))
        await env.setup()
        (group,), _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert_exact(group, server, encoding.encode, CALL, FINAL)
    assert group["scores"] == [1.0, 1.0]
    roles = [message["role"] for message in group["messages"][0]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert group["messages"][0][2]["content"] == "hello world [ok-7f3]"


async def test_agents_that_are_not_trained_are_in_no_group(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(examples()))
    with speaker(encoding.encode, encoding.decode, "ping<|im_end|>") as server:
        settings = {"args": {"taskset": {"phrases": ["ping"]}}}
        env = make("duet-v1", server.base_url, encoding.folder, str(verifiers_python()), **settings)
        await env.setup()
        groups, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    (group,) = groups
    assert len(server.requests) == 4, "two agents in each of two rollouts"
    assert [overrides["agent"] for overrides in group["overrides"]] == ["a", "a"]
    assert group["scores"] == [1.0, 1.0] and group["overrides"][0]["reward/duet"] == 1.0


async def test_a_harness_that_runs_commands_here_is_refused(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(examples()))
    url = "http://127.0.0.1:9/v1"
    env = make("echo-v1", url, encoding.folder, str(verifiers_python()), harness="bash")
    with pytest.raises(HermesError, match="runs the model's commands on this machine") as caught:
        await env.setup()
    await env.close()
    assert "--env.runtime docker" in caught.value.hint


async def test_a_classic_package_runs_with_the_version_that_has_its_api(
    encoding: Encoding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "doubling.py").write_text(CLASSIC)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    with speaker(encoding.encode, encoding.decode, "It is 4.<|im_end|>") as server:
        env = make("doubling", server.base_url, encoding.folder, str(classic_python()))
        await env.setup()
        groups = [await _group(env), await _group(env)]
        await env.close()
        newer = make("doubling", server.base_url, encoding.folder, str(verifiers_python()))
        with pytest.raises(HermesError, match="classic API") as caught:
            await newer.setup()
        await newer.close()
    assert_exact(groups[0], server, encoding.encode, "It is 4.<|im_end|>")
    assert [group["scores"] for group in groups] == [[1.0, 1.0], [0.0, 0.0]]
    assert "0.3.1" in caught.value.hint


async def _group(env: VerifiersEnv) -> dict[str, object]:
    (group,), _ = await env.collect_trajectories(await env.get_next_item())
    return dict(group)


CONFIG = """
env:
  tokenizer_name: {model}
  group_size: 2
  batch_size: 4
  total_steps: 3
  max_token_length: 96
  max_num_workers: 2
  ensure_scores_are_not_same: false
  rollout_server_url: {api}
  use_wandb: false
openai:
  - model_name: {model}
    base_url: http://localhost:{port}/v1
tinker:
  lora_rank: 4
  learning_rate: 0.001
  max_token_trainer_length: 1024
  save_checkpoint_interval: 0
"""
# A random model says a given letter in about half of its answers of 96 tokens, so that rewards differ.
TRAINED = {
    "echo-v1": {"taskset": {"phrases": ["e", "a"]}},
    "echo-user-sim-v1": {"taskset": {"phrases": ["e", "a"]}},
    "duet-v1": {"taskset": {"phrases": ["e", "a"]}},
}


# Rewards that differ even where a random model gives no answer: the share of one letter in its text.
LETTERS = """
import verifiers as vf
from datasets import Dataset

def load_environment(letters=("e", "a")):
    rows = [{"question": f"Write the letter {letter}.", "answer": letter} for letter in letters]
    def share(completion, answer, **_):
        text = completion[-1]["content"] or " "
        return text.count(answer) / len(text)
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[share]))
"""


@contextmanager
def terminal(home: Path, packages: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    variables = {
        **os.environ,
        "HERMES_HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(packages),
    }
    with (home / "terminal.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *command], env=variables, cwd=home, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=120)


@pytest.mark.parametrize("package", TRAINED)
def test_an_example_trains(package: str, tmp_path: Path) -> None:
    settings = ("--env.args", json.dumps(TRAINED[package]))
    train(package, verifiers_python(), examples(), tmp_path, *settings)


def test_a_classic_package_trains(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "letters.py").write_text(LETTERS)
    train("letters", classic_python(), packages, tmp_path)


def train(package: str, python: Path, packages: Path, home: Path, *settings: str) -> None:
    """Three steps of a tiny model on the package, through the trajectory API."""
    model = tiny_model(home / "model", 1024)
    api, url = start_api(home)
    try:
        file = home / "run.yaml"
        file.write_text(CONFIG.format(model=model, api=url, port=free_port()))
        serve = ("-m", "hermes", "env", "serve", "--verifiers", package, "--config", str(file))
        serve = (*serve, "--env.verifiers_python", str(python), *settings)
        trainer = (str(RECIPES / "launch_training.py"), "--config", str(file), "--no-wandb")
        with terminal(home, packages, *trainer) as training, terminal(home, packages, *serve):
            assert training.wait(timeout=1500) == 0, (home / "terminal.log").read_text()
    finally:
        api.kill()
    state = json.loads(next((home / "runs").glob("*/training.json")).read_text())
    assert [checkpoint[0] for checkpoint in state["kept"]] == [3]
    steps = [json.loads(line) for line in next((home / "runs").rglob("metrics.jsonl")).open()]
    assert any("loss" in name for step in steps for name in step), "a step without any signal has no loss"
