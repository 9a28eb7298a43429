"""Whole runs as real processes: API, engine, trainer and environment, started, killed, stopped, used."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hermes.cli.terminal.interrupted import STOPPED
from hermes.config.load import load
from hermes.core import Message, Sampling
from hermes.models.base import ChatRequest
from hermes.rl.results import step_rows
from hermes.rl.run import RlRun, last_step, read_metrics
from hermes.rl.weights.open import find_policy, open_policy
from hermes.training.service.token_meter import read_tokens
from tests import disks
from tests.engine.http.engine_process import launch
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, hermes, how_it_ended, make_home, policy_answers, start_run
from tests.training.proxy import Change, no_update, proxy, stale_sampler
from tests.waiting import wait_until


def _steps(run: RlRun) -> list[int]:
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
        run = start_run(home)
        assert not {8000, 8001} & set(run.config().run.ports.values())
        assert how_it_ended(run) == "completed: None"
    assert _steps(run) == [1, 2, 3, 4]
    config = run.config()
    assert config.env.get("group_size") == 4 and config.tinker.lora_rank == 4
    for part in ("api", "engine", "trainer", "env"):
        assert (home / "logs" / "rl_training" / f"{part}_{run.run_id}.log").stat().st_size > 0
        process = run.status().processes[part].process_id
        assert process is not None and not process.alive()
    results = answer(home, "rl", "results", run.run_id)
    assert results["steps"] == 4 and len(results["history"]) == 4
    assert results["final_metrics"]["reward/mean"] == results["history"][-1]["reward/mean"]
    assert Path(results["weights_path"]).is_dir()
    _weights_load(home, run)
    _model_answers(home, run)
    second_stop = hermes(home, "rl", "stop", run.run_id)
    assert second_stop.returncode == 2 and "has ended: completed" in second_stop.stderr


def _weights_load(home: Path, run: RlRun) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = Path(answer(home, "rl", "weights", run.run_id)["path"])
    base = AutoModelForCausalLM.from_pretrained(run.config().run.model)
    adapted = PeftModel.from_pretrained(base, str(folder))
    trained = {name: one for name, one in adapted.named_parameters() if "lora_B" in name}
    assert trained and any(one.abs().max() > 0 for one in trained.values())
    merged = Path(answer(home, "rl", "weights", run.run_id, "--step", "2", "--format", "merged")["path"])
    assert merged.name == "step-2" and (merged / "config.json").exists()
    _gguf(home, run)
    none = hermes(home, "rl", "weights", run.run_id, "--step", "3")
    assert none.returncode == 2 and "it has: 2, 4" in none.stderr


def _gguf(home: Path, run: RlRun) -> None:
    """By llama.cpp's converter where there is one; a program in its place shows how it is called."""
    words = ("rl", "weights", run.run_id, "--format", "gguf")
    without = hermes(home, *words)
    assert without.returncode == 1 and "convert_hf_to_gguf.py" in without.stderr
    program = "import sys, pathlib; model, _, out = sys.argv[1:4]; "
    program += "pathlib.Path(out).write_bytes((pathlib.Path(model) / 'config.json').read_bytes())"
    (home / "convert_hf_to_gguf.py").write_text(program)
    made = answer(home, *words, env={"LLAMA_CPP": str(home)})
    assert json.loads(Path(made["path"]).read_text())["model_type"] == "llama"


def _model_answers(home: Path, run: RlRun) -> None:
    """As the model run:ID in this process; tests/rl/test_run_models.py asks a server of it."""
    config = load(environ={"HERMES_HOME": str(home)})
    policy = find_policy(config, f"run:{run.run_id}")
    assert policy is not None
    request = ChatRequest((Message.user("Say letters."),), sampling=Sampling(max_tokens=4))
    reply = asyncio.run(open_policy(config, policy).complete(request))
    assert reply.call.usage.completion > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_runs_at_once_and_a_stop_in_the_middle_of_one(home_with: MakeHome) -> None:
    home = home_with()
    first, second = start_run(home), start_run(home, "seed=3")
    ports = [port for run in (first, second) for port in run.config().run.ports.values()]
    assert len(set(ports)) == 4
    ended = answer(home, "rl", "stop", second.run_id)
    assert ended["status"] == "stopped"
    assert all(
        part.process_id is None or not part.process_id.alive() for part in second.status().processes.values()
    )
    assert how_it_ended(first) == "completed: None"
    listed = {row["run_id"]: row["status"] for row in answer(home, "rl", "runs")["runs"]}
    assert listed == {first.run_id: "completed", second.run_id: "stopped"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for a run and a little more."""
    with disks.disk(tmp_path / "disk", "300m") as place:
        yield place


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_whose_disk_fills_up_waits_with_a_sentence_and_goes_on_when_there_is_room(
    disk: Path, model: Path
) -> None:
    home = make_home(disk / "home", model, total_steps=12)
    run = start_run(home)
    wait_until(lambda: last_step(run) >= 3)
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 65536)
    wait_until(lambda: "waiting" in answer(home, "rl", "status", run.run_id))
    report = answer(home, "rl", "status", run.run_id)
    assert report["waiting"].startswith("the disk is full") and report["status"] in ("running", "starting")
    wait_until(
        lambda: (
            not all(part.process_id.alive() for part in run.status().processes.values() if part.process_id)
        )
    )
    ballast.unlink()
    assert how_it_ended(run) == "completed: None"
    assert [row["step"] for row in step_rows(run)][-1] == 12


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("change", "cause", "last"),
    [(stale_sampler(), "stale adapter", 3), (no_update, "no-op optimizer", 2)],
    ids=["stale", "no-op"],
)
def test_a_sabotaged_run_fails_within_three_steps_naming_the_cause(
    home_with: MakeHome, tmp_path: Path, model: Path, change: Change, cause: str, last: int
) -> None:
    """All processes are real; what the trainer and the service say to each other is changed on the way.

    The first step cannot have a stale sampler: its rollouts are those of the first weights.
    """
    engine = launch(model, tmp_path / "service")
    with proxy(engine.url, change) as service:
        try:
            home = home_with(total_steps=20, learning_rate=0.01)
            run = start_run(home, env={"TINKER_BASE_URL": service})
            assert how_it_ended(run).startswith(f"failed: trainer exited (1): {cause}: ")
        finally:
            engine.kill()
    assert last_step(run) <= last
    (first, *_) = answer(home, "rl", "doctor", run.run_id)
    assert first["cause"] == "the run failed" and cause in first["evidence"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_whose_masks_are_wrong_fails_within_three_steps_naming_the_cause(home_with: MakeHome) -> None:
    shifted = Path(__file__).parent / "sabotage" / "shifted.py"
    run = start_run(home_with(total_steps=20), environment=str(shifted))
    assert how_it_ended(run).startswith("failed: trainer exited (1): wrong mask: ")
    assert last_step(run) < 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_with_a_service_that_speaks_tinker_only_trains_samples_and_gives_its_weights(
    home_with: MakeHome, tmp_path: Path, model: Path
) -> None:
    """Our engine in the role of the managed service: whatever is not the Tinker API is a 404."""
    engine = launch(model, tmp_path / "service")
    with proxy(engine.url, only="/api/v1/") as service:
        try:
            home = home_with(total_steps=4)
            answer(home, "rl", "select", "letters")
            look = answer(home, "rl", "preflight", "--groups", "1", env={"TINKER_BASE_URL": service})
            assert look["rollouts"] == 8 and look["verdict"].startswith("will learn: ")
            run = start_run(home, env={"TINKER_BASE_URL": service})
            assert how_it_ended(run) == "completed: None"
            assert set(run.status().processes) == {"api", "trainer", "env"}
            assert not (run.folder / "engine").exists()
            assert _steps(run) == [1, 2, 3, 4]
            rows = list(read_metrics(run.metrics_path))
            assert all(row["data/refused"] == 0 and row["health/staleness"] <= 4 for row in rows)
            assert all(row["probe/gap"] < 0.01 for row in rows)
            assert rows[0]["health/logprob_gap"] < 1e-3, "the tokens and logprobs are those that were sampled"
            tokens = read_tokens(run.folder)
            assert min(tokens.prefill, tokens.sampled, tokens.trained) > 0
            results = answer(home, "rl", "results", run.run_id)
            assert results["weights_path"].startswith("tinker://")
            folder = Path(answer(home, "rl", "weights", run.run_id)["path"])
            assert (folder / "adapter_model.safetensors").stat().st_size > 0
            named = json.loads((folder / "adapter_config.json").read_text())
            assert named["base_model_name_or_path"] == str(model)
            _served(home, run)
        finally:
            engine.kill()


def _served(home: Path, run: RlRun) -> None:
    """`hermes rl serve` for weights that lie with the service."""
    command = [sys.executable, "-m", "hermes", "rl", "serve", run.run_id, "--port", "0"]
    environ = {**os.environ, "HERMES_HOME": str(home)}
    said = policy_answers(command, environ, STOPPED["rl serve"], signal.SIGINT)
    assert "step-4" in said["metadata"]["weight_version"]
