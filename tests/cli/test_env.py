"""`hermes env` as people use it: real processes, a real model server, a real trajectory API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hermes.config.paths import db_path
from hermes.store import Filter, Reader
from tests.cli.process import PASSED_ON, failure, hermes
from tests.envs.templates import bundled_tokenizer
from tests.envs.token_source import TokenServer
from tests.envs.world import call, policy
from tests.fakes.provider import FakeProvider, text
from tests.rollouts.conftest import Client, Launch, launch

__all__ = ["launch"]

ADD_UP = call("terminal", command="awk '{s+=$1} END {print s}' numbers.txt > sum.txt")


@pytest.fixture
def home(tmp_path: Path, bundled_home: Path) -> Path:
    """A home of its own that shares the bundled model."""
    place = tmp_path / "home"
    place.mkdir()
    (place / "models").symlink_to(bundled_home / "models")
    return place


@pytest.fixture
def sums(home: Path, tmp_path: Path) -> Path:
    """A new environment, just as the template writes it."""
    done = hermes(home, "env", "new", "sums", "--dir", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["file_path"])


def test_a_run_of_a_new_environment_has_answers_that_a_cpu_finishes(home: Path, sums: Path) -> None:
    """With 2,048 tokens, as elsewhere, preflight had no group of the untrained model within five minutes."""
    done = hermes(home, "rl", "config", "--env", str(sums), "--json")
    fields = {field["name"]: field["current_value"] for field in json.loads(done.stdout)["locked_fields"]}
    assert fields["env.max_token_length"] == 256


def every_other(bundled_home: Path) -> TokenServer:
    """A policy that solves every other task, and says nothing useful in between."""
    lock, seen = threading.Lock(), [0]

    def says(prompt: str) -> str:
        if "<tool_response>\n{" in prompt:
            return "Done."
        with lock:
            seen[0] += 1
            return ADD_UP if seen[0] % 2 else "I would rather not."

    return policy(bundled_tokenizer(bundled_home), says)


def settings(server: TokenServer, **more: Any) -> list[str]:
    known = {
        "openai.base_url": server.base_url,
        "openai.server_type": "sglang",
        "env.group_size": 2,
        "env.use_wandb": "false",
        **more,
    }
    return [word for name, value in known.items() for word in (f"--{name}", str(value))]


def test_the_template_is_listed_and_passes_the_check(home: Path, sums: Path) -> None:
    listed = json.loads(hermes(home, "env", "list", str(sums.parent), "--json").stdout)
    (own,) = [each for each in listed["environments"] if each["name"] == "sums"]
    assert (own["class_name"], own["file_path"]) == ("SumsEnv", str(sums))
    done = hermes(home, "env", "check", str(sums), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["passed"], report
    states = {finding["what"]: finding["state"] for finding in report["findings"]}
    assert states["gold earns 1.0"] == states["rewards vary"] == "ok"
    assert sum("exploits" in what for what in states) == 2
    assert "skipped" not in states.values()
    assert not db_path(home).exists()


def test_configured_folders_are_known_and_options_come_in_any_order(home: Path, sums: Path) -> None:
    named = hermes(home, "env", "check", "sums", "--dir", str(sums.parent), "--json")
    assert named.returncode == 0, named.stderr
    assert json.loads(named.stdout)["passed"]
    assert hermes(home, "env", "check", "--dir", str(sums.parent), "sums").returncode == 0
    assert "sums" not in hermes(home, "env", "list").stdout
    (home / "config.yaml").write_text(f"rl:\n  environments: [{sums.parent}]\n")
    assert "sums" in hermes(home, "env", "list").stdout
    assert hermes(home, "env", "check", "sums").returncode == 0


def test_debug_plays_a_script_and_leaves_nothing_behind(home: Path, sums: Path) -> None:
    silence = json.loads(hermes(home, "env", "debug", str(sums), "--play", "silence", "--json").stdout)
    assert silence["reward"] == 0.0 and silence["sequences"] == [] and silence["trajectory"] is None
    shown = hermes(home, "env", "debug", str(sums), "--task", "2").stdout
    for part in ("task 2 of sums, played by gold", "\ncall ", "reward 1", "tokens: none to train on"):
        assert part in shown
    error, fix = failure(hermes(home, "env", "debug", str(sums), "--play", "nobody"), 2)
    assert "nobody called 'nobody'" in error and "gold, silence, model" in fix
    assert not db_path(home).exists()


@pytest.mark.slow
def test_debug_shows_every_token_of_a_model_with_its_mask(home: Path, sums: Path, bundled_home: Path) -> None:
    with every_other(bundled_home) as server:
        words = ("env", "debug", str(sums), "--json", *settings(server))
        done = hermes(home, *words, timeout_s=600)
    report = json.loads(done.stdout)
    (sequence,) = report["sequences"]
    assert [segment["in_loss"] for segment in sequence] == [False, True, False, True]
    assert ADD_UP in sequence[1]["text"] and sequence[3]["text"].startswith("Done.")
    assert sequence[1]["mean_logprob"] is not None and sequence[0]["mean_logprob"] is None
    with Reader(db_path(home)) as reader:
        assert [summary.id for summary in reader.summaries()] == [report["trajectory"]]


def test_new_refuses_a_bad_name_and_an_existing_file(home: Path, sums: Path) -> None:
    error, _ = failure(hermes(home, "env", "new", "sums", "--dir", str(sums.parent)), 2)
    assert "already exists" in error
    error, _ = failure(hermes(home, "env", "new", "1 / 0", "--dir", str(sums.parent)), 2)
    assert "not a valid name" in error


def test_check_exits_with_1_and_says_what_is_wrong(home: Path, sums: Path) -> None:
    sums.write_text(sums.read_text().replace("return float(written", "return 0.0 * float(written"))
    done = hermes(home, "env", "check", str(sums))
    assert done.returncode == 1
    assert "failed  gold earns 1.0" in done.stdout


@pytest.mark.slow
def test_process_writes_exact_groups_and_records_every_rollout(
    home: Path, sums: Path, bundled_home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "groups.jsonl"
    with every_other(bundled_home) as server:
        more = {"env.total_steps": 2, "env.data_path_to_save_groups": out, "env.max_num_workers": 1}
        done = hermes(home, "env", "process", str(sums), *settings(server, **more))
    assert done.returncode == 0, done.stderr
    groups = [json.loads(line) for line in out.read_text().splitlines()]
    assert [sorted(group["scores"]) for group in groups] == [[0.0, 1.0], [0.0, 1.0]]
    tokenizer = bundled_tokenizer(bundled_home)
    for group in groups:
        for score, ids, masks, logprobs in zip(
            group["scores"], group["tokens"], group["masks"], group["inference_logprobs"], strict=True
        ):
            assert len(ids) == len(masks) == len(logprobs)
            spoken = tokenizer.decode([mask for mask in masks if mask != -100])
            assert spoken == (
                f"{ADD_UP}<|im_end|>Done.<|im_end|>" if score else "I would rather not.<|im_end|>"
            )
    assert out.with_suffix(".html").is_file()
    with Reader(db_path(home)) as reader:
        kept = {each.header.id for each in reader.trajectories(Filter(source="env"))}
        assert reader.count(Filter(source="env", min_reward=1.0)) == 2
    assert kept == {each["trajectory_id"] for group in groups for each in group["overrides"]}


@pytest.mark.slow
def test_evaluate_reports_success_with_its_uncertainty(
    home: Path, sums: Path, bundled_home: Path, tmp_path: Path
) -> None:
    with every_other(bundled_home) as server:
        more = {"env.eval_size": 4, "env.data_dir_to_save_evals": tmp_path / "evals"}
        done = hermes(home, "env", "evaluate", str(sums), *settings(server, **more))
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "evals" / "metrics.json").read_text())["results"]["all"]
    assert metrics["eval/success_rate"] == 0.5
    assert 0 < metrics["eval/success_rate_low"] < 0.5 < metrics["eval/success_rate_high"] < 1
    samples = (tmp_path / "evals" / "samples.jsonl").read_text().splitlines()
    assert sorted(json.loads(sample)["score"] for sample in samples) == [0.0, 0.0, 1.0, 1.0]


def test_serve_feeds_a_trainer_with_exact_groups_until_it_is_told_to_stop(
    home: Path, sums: Path, bundled_home: Path, launch: Launch
) -> None:
    api: Client = launch().client
    api.start(batch_size=4, max_token_len=2048)
    with every_other(bundled_home) as server:
        more = {"env.rollout_server_url": f"http://127.0.0.1:{api.port}", "env.max_num_workers": 1}
        environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-m", "hermes", "env", "serve", str(sums), *settings(server, **more)],
            env={**environ, "HERMES_HOME": str(home)},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            batch = None
            while batch is None and process.poll() is None:
                time.sleep(0.1)
                batch = api.batch()
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert batch is not None, errors
    assert sum(len(group["tokens"]) for group in batch) == 4
    for group in batch:
        assert sorted(group["scores"]) == [0.0, 1.0]
        for masks, logprobs in zip(group["masks"], group["inference_logprobs"], strict=True):
            assert any(mask != -100 for mask in masks)
            assert all(
                (mask == -100) == (logprob == 1.0) for mask, logprob in zip(masks, logprobs, strict=True)
            )


def test_a_model_server_that_is_down_ends_with_words(home: Path, sums: Path, tmp_path: Path) -> None:
    flags = ["--openai.base_url", "http://127.0.0.1:9/v1", "--env.start_patience_s", "1"]
    flags += ["--env.data_path_to_save_groups", str(tmp_path / "out.jsonl")]
    done = hermes(home, "env", "process", str(sums), *flags)
    assert done.returncode != 0
    assert "http://127.0.0.1:9" in done.stderr
    assert "fix: " in done.stderr


def test_help_is_the_commands_before_the_environment_and_the_environments_behind_it(
    home: Path, sums: Path
) -> None:
    assert "Feed a trainer" in hermes(home, "env", "serve", "--help").stdout
    assert "--env.eval_size" in hermes(home, "env", "serve", str(sums), "--help").stdout


def test_a_missing_environment_is_named_with_what_is_near(home: Path, tmp_path: Path) -> None:
    error, fix = failure(hermes(home, "env", "process", "calculatr"), 2)
    assert "calculatr" in error and "calculator" in fix
    error, _ = failure(hermes(home, "env", "check", str(tmp_path / "none.py")), 2)
    assert "no environment file" in error
    error, _ = failure(hermes(home, "env", "list", str(tmp_path / "none")), 2)
    assert "no folder" in error


NO_TOKENIZER = (
    "--env.tokenizer_name",
    "no/such-tokenizer",
    "--env.group_size",
    "2",
    "--env.total_steps",
    "2",
)


def test_process_against_a_chat_endpoint_needs_no_tokenizer(home: Path, tmp_path: Path) -> None:
    output = tmp_path / "groups.jsonl"
    with FakeProvider(lambda body: text("The answer is 4.")) as provider:
        server = ("--openai.base_url", provider.base_url, "--openai.server_type", "openai")
        flags = (*NO_TOKENIZER, *server, "--openai.model_name", "m")
        done = hermes(
            home,
            *("env", "process", "calculator", *flags, "--env.data_path_to_save_groups", str(output)),
            env={"HF_HUB_OFFLINE": "1"},
        )
    assert done.returncode == 0, done.stderr
    groups = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(groups) == 2
    assert all(group["messages"][0] and group["tokens"] == [[], []] for group in groups)


def test_a_start_that_fails_leaves_no_file(home: Path, tmp_path: Path) -> None:
    """The tokenizer that exact tokens need cannot be loaded."""
    output = tmp_path / "out" / "groups.jsonl"
    with FakeProvider(lambda body: text("4")) as provider:
        flags = (*NO_TOKENIZER, "--openai.base_url", provider.base_url, "--openai.server_type", "sglang")
        flags += ("--env.data_path_to_save_groups", str(output))
        done = subprocess.run(
            [sys.executable, "-m", "hermes", "env", "process", "calculator", *flags],
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ}
            | {"HERMES_HOME": str(home), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 2, done.stderr
    assert "the tokenizer 'no/such-tokenizer' cannot be loaded" in done.stderr
    assert list(output.parent.iterdir()) == []
