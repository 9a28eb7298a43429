"""Looking before training, with a real model: `hermes rl test` and `hermes rl preflight`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.rl.checks.inference_test import read_groups, sample_until
from hermes.rl.checks.preflight import open_policy
from hermes.rl.process import ProcessId
from hermes.rl.run import RlRun, find_run, read_metrics
from hermes.serving.fetch import fetch
from tests.cli.process import failure
from tests.cli.terminal import hermes_terminal
from tests.fakes.provider import FakeProvider, text
from tests.policies.named_home import write_adapter
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, change_settings, hermes, resolved_run
from tests.waiting import wait_until


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_preflight_says_whether_it_will_learn_and_the_run_bears_it_out(home_with: MakeHome) -> None:
    home = home_with()
    answer(home, "rl", "select", "letters")
    found = answer(home, "rl", "preflight", "--groups", "2")
    assert found["rollouts"] == 16 and 0 < found["percent_positive_reward"] <= 100
    assert found["groups_with_signal"] == 1.0
    assert found["suggested"]["group_size"] >= 8 and found["suggested"]["learning_rate"] > 0
    assert found["groups"] == 2 and found["distinct_answers"] > 0.9
    assert found["suggested"]["agent_temperature"] == 1.0, "the answers differ already"
    assert found["estimate"]["seconds_per_step"] > 0 and 0 < found["estimate"]["update_share"] < 1
    assert found["verdict"].startswith("will learn: 100% of the groups have something to compare")
    started = answer(home, "rl", "start", "--set", "group_size=4", "--set", "batch_size=8")
    run = find_run(home, started["run_id"])
    used_gb = 0.0
    while not run.status().state.ended:
        used_gb = max(used_gb, _used_gb(run))
        time.sleep(0.05)
    rewards = [row["reward/mean"] for row in read_metrics(run.metrics_path)]
    assert statistics.fmean(rewards) == pytest.approx(found["mean_reward"], abs=0.2), "the same policy"
    assert all(row["health/group_signal"] > 0.5 for row in read_metrics(run.metrics_path))
    assert 0.5 < found["estimate"]["memory_gb"] / used_gb < 2


def test_preflight_samples_the_weights_that_the_run_starts_from(
    home_with: MakeHome, model: Path, tmp_path: Path
) -> None:
    home = home_with()
    write_adapter(model, tmp_path / "warm", ["q_proj", "down_proj"], 1)
    write_adapter(model, tmp_path / "other", ["q_proj", "down_proj"], 2)
    config = load({}, {"HERMES_HOME": str(home)})
    said = []
    for start in ("", str(tmp_path / "warm"), str(tmp_path / "other"), str(tmp_path / "warm")):
        resolved = resolved_run(home, **{"tinker.start_from": start})
        with open_policy(config, resolved, tmp_path / "engine.log") as policy:
            settings = policy.server.settings
            body = {"model": settings["model_name"], "prompt": "hi", "max_tokens": 12, "temperature": 0}
            reply = json.loads(fetch(f"{settings['base_url']}/completions", body, timeout_s=60))
        said.append(reply["choices"][0]["text"])
    assert len(set(said[:3])) == 3 and said[1] == said[3]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_at_a_terminal_a_run_without_signal_is_not_started(home_with: MakeHome, tmp_path: Path) -> None:
    home = home_with()
    (tmp_path / "same.py").write_text("def same(ctx):\n    return 0.5\n")
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "Name a colour."}\n{"prompt": "Name a city."}\n')
    words = ("--prompts", "tasks.jsonl", "--reward", "same.py:same", "--set", "max_token_length=32")
    with hermes_terminal(home, "rl", "start", *words, cwd=tmp_path) as terminal:
        terminal.expect(r"preflight: sampling from the policy it starts from .* … \d+ s", timeout_s=200)
        terminal.expect("the run would not learn: within every group all rewards are equal", timeout_s=200)
        terminal.expect("fix: warm-start it")
        assert terminal.wait() == 1
    assert answer(home, "rl", "runs")["runs"] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_preflight_judges_what_was_made_in_time_and_says_so_if_that_was_nothing(home_with: MakeHome) -> None:
    home = home_with()
    answer(home, "rl", "select", str(Path(__file__).parent / "sabotage" / "slow.py"))
    found = answer(home, "rl", "preflight", "--groups", "64", "--seconds", "25")
    assert 0 < found["groups"] < 64
    what, how = failure(hermes(home, "rl", "preflight", "--seconds", "1"), 1)
    assert what == "no group could be sampled: it took longer than 5 s"
    assert "--timeout" in how and "--no-preflight" in how


@pytest.mark.slow
def test_a_cpu_samples_the_least_groups_first_and_not_all_of_them_late(
    home_with: MakeHome, tmp_path: Path
) -> None:
    home, count = home_with(), tmp_path / "most"
    change_settings(home, device="cpu")
    answer(home, "rl", "select", str(Path(__file__).parent / "sabotage" / "counting.py"))
    found = answer(home, "rl", "preflight", "--groups", "6", env={"HERMES_TEST_COUNT": str(count)})
    assert (found["groups"], count.read_text()) == (6, "2")


_SLOW_ENVIRONMENT = """
import sys, time
with open(sys.argv[1], "w") as file:
    for pause_s in (0, 4, 600):
        time.sleep(pause_s)
        print('{"scores": [0, 1]}', file=file, flush=True)
"""


@pytest.mark.parametrize(("least", "groups"), [(2, 2), (1, 1)])
def test_a_slow_machine_gets_more_time_until_something_is_measured(
    tmp_path: Path, least: int, groups: int
) -> None:
    """The time limit of 3 s passes before the second group is there."""
    output = tmp_path / "groups.jsonl"
    command = [sys.executable, "-c", _SLOW_ENVIRONMENT, str(output)]
    assert sample_until(command, tmp_path / "log", 3.0, output, 60.0, least) is None
    assert len(read_groups(output)) == groups


@pytest.mark.slow
def test_a_model_of_the_hub_is_looked_at_too_and_one_that_is_not_there_is_named(
    home_with: MakeHome, model: Path, tmp_path: Path
) -> None:
    cached = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(model, cached / "snapshots" / "0123")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    environ = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    home = home_with()
    answer(home, "rl", "select", "letters")
    change_settings(home, model="someone/tiny")
    assert answer(home, "rl", "preflight", "--groups", "1", env=environ)["rollouts"] == 8
    change_settings(home, model="someone/else")
    what, how = failure(hermes(home, "rl", "preflight", env=environ), 1)
    assert "someone/else" in what and "rl.model" in how
    (tmp_path / "empty").mkdir()
    change_settings(home, model=str(tmp_path / "empty"))
    what, how = failure(hermes(home, "rl", "preflight", env=environ), 1)
    assert what.startswith("the engine does not start: ") and how.endswith("_engine.log")


def _used_gb(run: RlRun) -> float:
    """Of all processes of the run, at this moment."""
    pages = 0
    for part in run.status().processes.values():
        if part.process_id is not None:
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{part.process_id.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_inference_test_has_files_of_its_own_and_one_bad_model_spoils_nothing(
    home_with: MakeHome, model: Path
) -> None:
    home = home_with()
    answer(home, "rl", "select", "letters")
    flags = ("--num-steps", "1", "--group-size", "2", "--model", str(model), "--model", "nobody/model")
    files = set()
    for _ in range(2):
        found = answer(home, "rl", "test", *flags)
        good, bad = found["models_tested"]
        assert good["total_completions"] == 2 and "error" not in good
        assert "OPENROUTER_API_KEY is not set" in bad["error"]
        assert found["summary"]["models_succeeded"] == 1 and found["summary"]["best_model"] == str(model)
        files.add(good["output_file"])
    assert len(files) == 2 and all(Path(file).is_file() for file in files)
    folder = home / "logs" / "rl_training" / "inference_tests"
    assert not list(folder.glob("*.yaml")), "what held the keys is gone"


@pytest.mark.slow
def test_an_endpoint_is_tested_with_its_key_and_the_key_is_in_no_file(home_with: MakeHome) -> None:
    home = home_with()
    with FakeProvider(lambda request: text("bdfh"), api_key="sk-or-v1-0123456789") as provider:
        hermes(home, "config", "set", "providers.mine.base_url", provider.base_url)
        hermes(home, "config", "set", "providers.mine.key_env", "MY_KEY")
        answer(home, "rl", "select", "letters")
        flags = ("--num-steps", "1", "--group-size", "2", "--model", "mine/m")
        found = answer(home, "rl", "test", *flags, env={"MY_KEY": "sk-or-v1-0123456789"})
    tested = found["models_tested"][0]
    assert (tested["accuracy"], tested["total_completions"]) == (1.0, 2)
    for file in (home / "logs").rglob("*"):
        assert file.is_dir() or b"sk-or-v1-0123456789" not in file.read_bytes()


def test_a_test_that_takes_too_long_leaves_no_process_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert sample_until(["sh", "-c", "sleep 300 & echo $!; wait"], log, 1.0, tmp_path / "output") is None
    grandchild = ProcessId(int(log.read_text()), "?")
    wait_until(lambda: not grandchild.alive())


def test_if_no_model_can_be_asked_the_command_fails(home_with: MakeHome) -> None:
    home = home_with()
    answer(home, "rl", "select", "letters")
    done = hermes(home, "rl", "test", "--num-steps", "1", "--group-size", "2")
    assert done.returncode == 1 and done.stdout.count("OPENROUTER_API_KEY is not set") == 3
    assert "nothing is known about the environment" in done.stdout
    report = json.loads(hermes(home, "rl", "test", "--num-steps", "1", "--group-size", "2", "--json").stdout)
    assert report["summary"]["environment_working"] is None
