"""Whole runs as real processes: API, engine, trainer and environment, started, killed, stopped, used."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.core import Message, Sampling
from hermes.models.base import ChatRequest
from hermes.rl.run import Run, RunState, find_run
from hermes.rl.serve import open_run_model, serve_command
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, change_settings, hermes, wait_for


def _start(home: Path, *edits: str) -> Run:
    flags = [word for edit in ("group_size=4", "batch_size=8", *edits) for word in ("--set", edit)]
    started = answer(home, "rl", "start", "--env", "letters", *flags)
    assert started["status"] in ("starting", "running")
    return find_run(home, started["run_id"])


def _ended(run: Run, timeout_s: float = 170) -> str:
    status = wait_for(lambda: run.status() if run.status().state.ended else None, timeout_s)
    assert status.ended_at_ms >= status.started_at_ms
    return f"{status.state.value}: {status.reason}"


def _steps(run: Run) -> list[int]:
    return [json.loads(line)["step"] for line in run.metrics_path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_completes_and_its_weights_can_be_used_in_every_form(home_with: MakeHome) -> None:
    home = home_with()
    with closing(socket.socket()) as taken, closing(socket.socket()) as also_taken:
        for sock, port in ((taken, 8000), (also_taken, 8001)):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
                sock.listen()
            except OSError:
                pass  # somebody else has it, which serves as well
        run = _start(home)
        assert not {8000, 8001} & set(run.config()["run"]["ports"].values())
        assert _ended(run) == "completed: None"
    assert _steps(run) == [1, 2, 3, 4]
    config = run.config()
    assert config["env"]["group_size"] == 4 and config["tinker"]["lora_rank"] == 4
    for part in ("api", "engine", "trainer", "env"):
        assert (home / "logs" / "rl_training" / f"{part}_{run.run_id}.log").stat().st_size > 0
        process = run.status().parts[part].process
        assert process is not None and not process.alive()
    results = answer(home, "rl", "results", run.run_id)
    assert results["steps"] == 4 and len(results["history"]) == 4
    assert results["final_metrics"]["reward/mean"] == results["history"][-1]["reward/mean"]
    assert Path(results["weights_path"]).is_dir()
    _weights_load(home, run)
    _model_answers(home, run)
    second_stop = hermes(home, "rl", "stop", run.run_id)
    assert second_stop.returncode == 2 and "has ended: completed" in second_stop.stderr


def _weights_load(home: Path, run: Run) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = Path(answer(home, "rl", "weights", run.run_id)["path"])
    base = AutoModelForCausalLM.from_pretrained(run.config()["run"]["model"])
    adapted = PeftModel.from_pretrained(base, str(folder))
    trained = {name: one for name, one in adapted.named_parameters() if "lora_B" in name}
    assert trained and any(one.abs().max() > 0 for one in trained.values())
    merged = Path(answer(home, "rl", "weights", run.run_id, "--step", "2", "--format", "merged")["path"])
    assert merged.name == "step-2" and (merged / "config.json").exists()
    none = hermes(home, "rl", "weights", run.run_id, "--step", "3")
    assert none.returncode == 2 and "it has: 2, 4" in none.stderr


def _model_answers(home: Path, run: Run) -> None:
    """As the model run:ID in this process, and as `policy` from a server over its checkpoints."""
    model = open_run_model(load(environ={"HERMES_HOME": str(home)}), f"run:{run.run_id}")
    request = ChatRequest((Message.user("Say letters."),), sampling=Sampling(max_tokens=4))
    assert asyncio.run(model.complete(request)).call.usage.completion > 0
    served = subprocess.Popen(serve_command(run, 0), stdout=subprocess.PIPE, text=True)
    try:
        assert served.stdout is not None
        url = served.stdout.readline().split()[2].rstrip(",")
        body = json.dumps({"model": "policy", "prompt": "hi", "max_tokens": 4}).encode()
        asked = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as told:
            assert json.load(told)["usage"]["completion_tokens"] > 0
    finally:
        served.terminate()
        served.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["api", "engine", "trainer", "env", "supervisor"])
def test_a_killed_process_does_not_change_how_the_run_ends(home_with: MakeHome, victim: str) -> None:
    run = _start(home_with(total_steps=6))
    wait_for(lambda: run.status().state is RunState.RUNNING)
    time.sleep(random.uniform(0, 3))
    status = run.status()
    process = status.supervisor if victim == "supervisor" else status.parts[victim].process
    if process is not None and process.alive():
        os.kill(process.pid, signal.SIGKILL)
    assert _ended(run) == "completed: None"
    assert _steps(run) == [1, 2, 3, 4, 5, 6], "no step is missing or trained twice"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_runs_at_once_and_a_stop_in_the_middle_of_one(home_with: MakeHome) -> None:
    home = home_with()
    first, second = _start(home), _start(home, "seed=3")
    ports = [port for run in (first, second) for port in run.config()["run"]["ports"].values()]
    assert len(set(ports)) == 4
    ended = answer(home, "rl", "stop", second.run_id)
    assert ended["status"] == "stopped"
    assert all(part.process is None or not part.process.alive() for part in second.status().parts.values())
    assert _ended(first) == "completed: None"
    listed = {row["run_id"]: row["status"] for row in answer(home, "rl", "runs")["runs"]}
    assert listed == {first.run_id: "completed", second.run_id: "stopped"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_on_an_engine_elsewhere_starts_none_and_its_weights_are_downloaded(
    home_with: MakeHome, tmp_path: Path, model: Path
) -> None:
    state = ("--state-dir", str(tmp_path / "engine"), "--device", "cpu", "--port", "0")
    command = [sys.executable, "-m", "hermes", "engine", "serve", "--model", str(model), *state]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert engine.stdout is not None
        url = engine.stdout.readline().split()[2].rstrip(",")
        home = home_with(total_steps=2)
        change_settings(home, engine_url=url)
        run = _start(home)
        assert _ended(run) == "completed: None"
        assert set(run.status().parts) == {"api", "trainer", "env"}
        folder = Path(answer(home, "rl", "weights", run.run_id)["path"])
        assert (folder / "adapter_model.safetensors").stat().st_size > 0
        assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
            model
        )
    finally:
        engine.terminate()
        engine.wait()
