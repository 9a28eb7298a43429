"""A run whose environment samples at other servers: the supervisor starts the fleet beside the engine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.errors import UsageError
from hermes.rl.config.fields import TrainerFields
from hermes.rl.fleet.run_fleet import RunFleet
from hermes.rl.run import RunState, all_runs
from hermes.rl.start import start
from tests.engine.http.engine_process import launch
from tests.fakes.lora_server import LoraServer
from tests.rl.books import check_books
from tests.rl.conftest import MakeHome
from tests.rl.world import how_it_ended, resolved_run, start_run
from tests.training.world import metrics
from tests.waiting import wait_until


def test_the_fields_of_a_run_become_the_command_of_its_fleet_and_the_address_of_its_environments() -> None:
    fleet = RunFleet.from_fields(
        TrainerFields(sampling_servers=["http://a:1", "http://b:2/v1"], sampling_server_type="sglang")
    )
    assert fleet is not None
    command = " ".join(fleet.command("http://127.0.0.1:8001", Path("/run"), 8003))
    assert command == (
        "engine fleet --base-url http://a:1 --base-url http://b:2/v1 --type sglang "
        "--folder /run/adapters --service http://127.0.0.1:8001 --port 8003"
    )
    assert fleet.environment_flags(8003) == (
        *("--openai.base_url", "http://127.0.0.1:8003/v1"),
        *("--openai.server_type", "sglang"),
    )
    assert RunFleet.from_fields(TrainerFields()) is None


def test_a_run_whose_sampling_servers_cannot_be_used_is_refused_before_it_starts(
    home_with: MakeHome,
) -> None:
    home = home_with()
    config = load({}, {"HERMES_HOME": str(home)})
    nobody = resolved_run(home, sampling_servers=["http://127.0.0.1:9"])
    with pytest.raises(UsageError, match=r"no vllm server answers at http://127\.0\.0\.1:9") as refused:
        start(config, nobody)
    assert "--enable-lora" in refused.value.hint
    with LoraServer("http://127.0.0.1:9", "model") as locked:
        locked.key = "sesame"
        with pytest.raises(UsageError, match="refuses the key of this fleet") as unauthorized:
            start(config, resolved_run(home, sampling_servers=[locked.url]))
    assert "hermes config set HERMES_FLEET_KEY" in unauthorized.value.hint
    service = {"TINKER_BASE_URL": "http://10.0.0.1:8001", "TINKER_API_KEY": "tml-x"}
    elsewhere = load({}, {"HERMES_HOME": str(home), **service})
    with pytest.raises(UsageError, match="sampling_servers need the run's own engine"):
        start(elsewhere, nobody)
    assert all_runs(home) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_on_two_servers_trains_every_batch_once_and_its_fleet_is_started_again(
    home_with: MakeHome, model: Path, tmp_path: Path
) -> None:
    sampler = launch(model, tmp_path / "sampler")
    try:
        with LoraServer(sampler.url, str(model)) as one, LoraServer(sampler.url, str(model)) as two:
            run = start_run(home_with(total_steps=10, sampling_servers=[one.url, f"{two.url}/v1"]))
            wait_until(lambda: run.status().state is RunState.RUNNING)
            wait_until(lambda: any("step-" in name for name in one.sampled))
            fleet = run.status().processes["fleet"].process_id
            assert fleet is not None
            os.kill(fleet.pid, signal.SIGKILL)
            assert how_it_ended(run) == "completed: None"
            assert run.status().processes["fleet"].starts == 2
            for server in (one, two):
                assert any("step-" in name for name in server.sampled), "both sample trained weights"
    finally:
        sampler.kill()
    check_books(run, 10)
    rows = metrics(run.folder)
    assert all(row["proof/gap_p90"] < 1e-3 and row["proof/unchecked"] == 0 for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_whose_adapters_no_server_can_load_fails_with_the_reason(
    home_with: MakeHome, model: Path, tmp_path: Path
) -> None:
    sampler = launch(model, tmp_path / "sampler")
    try:
        with LoraServer(sampler.url, str(model)) as server:
            server.refuses_to_load = "LoRA rank 4 is greater than max_lora_rank 2."
            run = start_run(home_with(total_steps=200, sampling_servers=[server.url]))
            ending = how_it_ended(run)
    finally:
        sampler.kill()
    assert ending.startswith("failed: fleet exited (2)"), ending
    assert "max_lora_rank 2" in run.log_path("fleet").read_text()
