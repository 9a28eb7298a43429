"""The reference's scripts, as its text runs them: `python recipes/NAME.py` with its flags."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from hermes.rl.machine import has_gpu
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, text
from tests.recipes.scripts import RECIPES, script


@pytest.mark.slow
def test_prompts_become_trajectories_and_are_compressed_by_the_commands_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Say hello"}\n{"prompt": "Say goodbye"}\n')
    flags = ["--dataset_file=prompts.jsonl", "--batch_size=10", "--run_name=my_run", "--num_workers=1"]
    flags += ["--distribution=minimal", "--verbose=True", "--reasoning_disabled=False"]
    with FakeProvider([text("hello")], loop=True) as provider:
        endpoint = ["--model=fake", f"--base_url={provider.base_url}"]
        done = script(tmp_path, "batch_runner.py", *flags, *endpoint, "--resume=False", OPENAI_API_KEY="k")
        assert done.returncode == 0, done.stderr
        again = script(tmp_path, "batch_runner.py", *flags, *endpoint, "--resume=True", OPENAI_API_KEY="k")
        assert again.returncode == 0, again.stderr
        assert len(provider.posts) == 2, "the second start has nothing left to do"
    rows = [
        json.loads(line) for line in (tmp_path / "data/my_run/trajectories.jsonl").read_text().splitlines()
    ]
    assert [turn["from"] for turn in rows[0]["conversations"]] == ["system", "human", "gpt"]
    source = "--input=data/my_run/trajectories.jsonl"
    done = script(tmp_path, "trajectory_compressor.py", source, "--target_max_tokens=8000", "--dry_run=False")
    assert done.returncode == 0, done.stderr
    compressed = tmp_path / "data/my_run/trajectories_compressed.jsonl"
    assert len(compressed.read_text().splitlines()) == 2


def test_a_run_that_is_to_be_resumed_has_to_exist(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Say hello"}\n')
    flags = ("--dataset_file=prompts.jsonl", "--run_name=nothing", "--resume", "True")
    done = script(tmp_path, "batch_runner.py", *flags)
    assert done.returncode == 2 and "nothing" in done.stderr


def test_the_agent_script_lists_environments_and_says_what_can_be_trained(tmp_path: Path) -> None:
    listed = script(tmp_path, "rl_cli.py", "--list_environments=True")
    assert listed.returncode == 0 and "gsm8k" in listed.stdout
    checked = script(
        tmp_path, "rl_cli.py", "--check_server", "--max_iterations=5", "--save_trajectories=False"
    )
    assert checked.stdout == "hermes/smollm2 can be trained here\n", checked.stderr


@pytest.mark.parametrize(
    ("wrong", "message", "hint"),
    [
        ("env:\n  groop_size: 4\n", "unknown key 'env.groop_size'", "did you mean env.group_size?"),
        ("tinker:\n  lora_ranks: 4\n", "unknown key 'tinker.lora_ranks'", "did you mean tinker.lora_rank?"),
        ("openai:\n  - base_ulr: x\n", "unknown key 'openai.base_ulr'", "did you mean openai.base_url?"),
        ("tinkr:\n  lora_rank: 4\n", "unknown key 'tinkr'", "did you mean tinker?"),
        (
            "env:\n  tokenizer_name: a/b\nopenai:\n  - model_name: c/d\n",
            "openai.model_name is c/d, and the model that is trained is a/b",
            "name the same model",
        ),
    ],
)
def test_a_key_that_nobody_reads_is_refused_with_the_nearest_one(
    tmp_path: Path, wrong: str, message: str, hint: str
) -> None:
    (tmp_path / "run.yaml").write_text(wrong)
    done = script(tmp_path, "launch_training.py", "--config=run.yaml")
    assert done.returncode == 2 and f"run.yaml: {message}" in done.stderr and hint in done.stderr


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_a_model_that_needs_a_gpu_is_refused_before_it_is_downloaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:
        endpoint = f"http://127.0.0.1:{hub.getsockname()[1]}"
        config = RECIPES / "configs" / "qwen3_8b.yaml"
        done = script(tmp_path, "launch_training.py", f"--config={config}", HF_ENDPOINT=endpoint)
    assert done.returncode == 2 and "Qwen/Qwen3-8B has 8 billion parameters and needs a GPU" in done.stderr


def test_the_environment_script_refuses_them_too_and_has_the_modes(tmp_path: Path) -> None:
    name = "tinker_atropos/environments/gsm8k_tinker.py"
    (tmp_path / "run.yaml").write_text("env:\n  datset_name: hub\n")
    done = script(tmp_path, name, "serve", "--config", "run.yaml")
    assert (
        done.returncode == 2
        and "unknown key 'env.datset_name'" in done.stderr
        and "env.dataset_name" in done.stderr
    )
    assert "{serve,process,evaluate}" in script(tmp_path, name, "--help").stdout


def test_the_template_of_an_environment_is_solvable_and_cannot_be_cheated(tmp_path: Path) -> None:
    for part in ("train", "test"):
        rows = [
            {"question": f"{part}: 3 + {n}?", "answer": f"3 + {n} = {n + 3}.\n#### {n + 3}"} for n in range(4)
        ]
        (tmp_path / f"{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    file = RECIPES / "tinker_atropos" / "environments" / "gsm8k_tinker.py"
    done = hermes(tmp_path, "env", "check", str(file), "--env.dataset_name", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gold earns 1.0" in done.stdout and "failed" not in done.stdout


def test_weights_are_asked_for_before_there_are_any(tmp_path: Path) -> None:
    done = script(tmp_path, "tinker_atropos/utils/download_weights.py")
    assert done.returncode == 2 and "no run has a checkpoint yet" in done.stderr
