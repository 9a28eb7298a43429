"""A stranger's environment in serve mode: a real API, a trainer of the old kind, and what goes wrong."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import BATCH, flags, groups_in
from tests.compat.world import GUESSING, SUMS, Running, Trainer, adder, drive, end, item_of
from tests.envs.token_source import TokenServer, said
from tests.fakes.provider import FakeProvider, status, text
from tests.ports import free_port
from tests.rollouts.conftest import Client, group
from tests.rollouts.kill_load import start
from tests.waiting import wait_until


def test_serving_goes_on_over_a_crash_of_the_api_and_no_group_is_lost(
    bundled_home: Path, tmp_path: Path
) -> None:
    port, kept = free_port(), tmp_path / "groups.jsonl"
    client = Client(port)
    api = start(port, tmp_path / "state")
    with adder() as model:
        try:
            client.start(batch_size=BATCH, checkpoint_dir=str(tmp_path / "ckpt"), save_checkpoint_interval=3)
            trainer = Trainer(client)
            trainer.start()
            settings = {"total_steps": 40, "data_path_to_save_groups": kept}
            given = flags(port, model.base_url, **settings)
            with drive(bundled_home, "serve", SUMS, *given, cwd=tmp_path) as env:
                wait_until(lambda: trainer.batches >= 10)
                api.kill()
                api.wait()
                wait_until(lambda: kept.exists())
                api = start(port, tmp_path / "state")
                code, _, log = end(env)
            if len(groups_in(kept)) % 2:  # half a batch would wait for ever
                client.post("/scored_data", group(2, messages=[[{"role": "user", "content": "item 0"}]] * 2))
            wait_until(lambda: len({item_of(one) for one in trainer.groups} - {0}) >= len(groups_in(kept)))
            trainer.stop()
            state = client.get("/status")
        finally:
            api.kill()
            api.wait()
    assert code == 0, log
    served = [item for item in map(item_of, trainer.groups) if item]
    assert len(served) == len(set(served)), "a group was taken twice"
    assert trainer.again <= 1, "more than the batch that was on its way came again"
    assert set(served) == set(map(item_of, groups_in(kept))), "a group was lost"
    assert state["current_step"] >= 40
    assert all(len(one["tokens"]) == 2 for one in trainer.groups)
    checkpoints = sorted((tmp_path / "ckpt" / "env_checkpoints" / "sums_0").glob("step-*.json"))
    assert checkpoints and all(json.loads(path.read_text())["iter"] > 0 for path in checkpoints)
    assert "evaluation got into the training metrics" not in log


@pytest.mark.slow
def test_a_signal_ends_serving_in_order_with_the_work_in_flight_delivered(
    bundled_home: Path, tmp_path: Path
) -> None:
    port, kept = free_port(), tmp_path / "groups.jsonl"
    client = Client(port)
    api = start(port, tmp_path / "state")
    with adder() as model:
        try:
            client.start(batch_size=BATCH)
            settings = {"data_path_to_save_groups": kept, "max_batches_offpolicy": 2, "total_steps": 1000}
            given = flags(port, model.base_url, **settings)
            with drive(bundled_home, "serve", SUMS, *given, cwd=tmp_path) as env:
                wait_until(lambda: client.get("/status")["queue"]["sequences"] == 2 * BATCH)
                asked = sum(request.json is not None for request in model.requests)
                env.send_signal(signal.SIGTERM)
                code, _, log = end(env)
            status_now = client.get("/status")
        finally:
            api.kill()
            api.wait()
    assert code == 0, log
    assert asked == 2 * 2 * BATCH / 2, "it paused with what the trainer may have waiting, and asked no more"
    assert status_now["queue"]["groups"] == len(groups_in(kept)) == BATCH
    assert "4 sent" in log
    assert not [env for env in status_now["envs"] if env["connected"]]


@pytest.fixture(autouse=True)
def home(bundled_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(bundled_home))


def test_an_environment_registers_anew_with_an_api_that_has_forgotten_it(tmp_path: Path) -> None:
    """Without a state directory it starts empty; the trainer registers again, the environment by itself."""
    port = free_port()
    client = Client(port)
    api = start(port, None)
    with adder() as model:
        try:
            client.start(batch_size=BATCH)
            env = Running("serve", SUMS, *flags(port, model.base_url, total_steps=8))
            env.start()
            wait_until(lambda: client.get("/status")["queue"]["sequences"] == 3 * BATCH)
            api.kill()
            api.wait()
            api = start(port, None)
            client.start(batch_size=BATCH)
            trainer = Trainer(client)
            trainer.start()
            env.join(90)
            named = [one["wandb_name"] for one in client.get("/status")["envs"]]
        finally:
            api.kill()
            api.wait()
    trainer.stop()
    assert not env.is_alive() and env.error is None
    assert named == ["sums_0"] and trainer.batches >= 8
    assert all(one["env_id"] == 0 for one in trainer.groups)


def test_exact_tokens_of_several_turns_reach_the_trainer(api: Client) -> None:
    trainer = Trainer(api)
    trainer.start()
    with TokenServer(lambda ids, params: said([9000 + len(ids) % 7, 12, 2])) as model:
        env = Running("serve", GUESSING, *flags(api.port, model.base_url, total_steps=3))
        assert env.ended() is None
    trainer.stop()
    assert len(trainer.groups) >= 4
    for made in trainer.groups:
        sequences = zip(made["tokens"], made["masks"], made["inference_logprobs"], strict=True)
        for tokens, mask, logprobs in sequences:
            sampled = [token for token in mask if token != -100]
            assert len(sampled) == 6 and sampled[1:3] == sampled[4:6] == [12, 2]
            assert [token for token, one in zip(tokens, mask, strict=True) if one != -100] == sampled
            assert all((value == 1.0) == (one == -100) for value, one in zip(logprobs, mask, strict=True))
        assert made["overrides"] is None and made["advantages"] is None


def test_a_model_that_fails_midway_costs_no_score(api: Client, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer(api)
    trainer.start()
    with adder(lambda count: status(503, retry_after=0.01) if 5 <= count < 25 else None) as model:
        env = Running("serve", SUMS, *flags(api.port, model.base_url, total_steps=4, max_num_workers=2))
        assert env.ended() is None
    trainer.stop()
    scores = [score for one in trainer.groups for score in one["scores"]]
    assert scores and all(score in (1.0, -1.0) for score in scores)
    assert "a group failed (provider)" in caplog.text


@pytest.mark.slow
def test_a_model_that_goes_away_and_comes_back_is_waited_for(api: Client) -> None:
    trainer = Trainer(api)
    trainer.start()
    with adder() as model:
        env = Running("serve", SUMS, *flags(api.port, model.base_url, total_steps=60, max_num_workers=2))
        env.start()
        wait_until(lambda: trainer.batches >= 2)
    port = int(model.base_url.split(":")[2].split("/")[0])
    had = trainer.batches
    with FakeProvider(lambda request: text("no idea"), port=port):
        wait_until(lambda: trainer.batches >= had + 5)
        env.join(90)
    trainer.stop()
    assert not env.is_alive() and env.error is None


def test_a_model_that_stays_away_ends_the_run_with_its_address(api: Client) -> None:
    trainer = Trainer(api)
    trainer.start()
    with adder() as model:
        settings = {"outage_patience_s": 1, "total_steps": 10_000}
        env = Running("serve", SUMS, *flags(api.port, model.base_url, **settings))
        env.start()
        wait_until(lambda: trainer.batches >= 1)
    env.join(60)
    trainer.stop()
    assert env.error is not None and env.error.exit_code == 1
    assert "no model server has answered for 1 s" in env.error.message


def test_a_model_that_is_not_there_at_the_start_is_named(tmp_path: Path) -> None:
    base_url = f"http://127.0.0.1:{free_port()}/v1"
    error = Running("serve", SUMS, *flags(1, base_url, start_patience_s=0.2)).ended()
    assert error is not None and error.exit_code == 1
    assert error.message == f"no model server responds at {base_url}."
    assert "--openai.base_url" in error.hint


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start_patience_s": 0.3}, "the trajectory API at http://127.0.0.1"),
        ({"rollout_server_url": "localhost:8000"}, "not an http URL"),
    ],
)
def test_an_api_that_is_not_there_is_named_and_ends_the_run(settings: dict[str, Any], message: str) -> None:
    with adder() as model:
        error = Running("serve", SUMS, *flags(free_port(), model.base_url, **settings)).ended()
    assert error is not None and error.exit_code == 1
    assert message in error.message and "hermes api" in error.hint


def test_what_is_at_the_address_but_no_api_is_said_to_be_none() -> None:
    with adder() as model:
        here = model.base_url.removesuffix("/v1")
        error = Running("serve", SUMS, *flags(1, model.base_url, rollout_server_url=here)).ended()
    assert error is not None and "/register-env" in error.message


def test_a_trainer_that_is_gone_ends_the_run_after_the_set_time(api: Client) -> None:
    with adder() as model:
        error = Running("serve", SUMS, *flags(api.port, model.base_url, trainer_patience_s=0.5)).ended()
    assert error is not None and error.exit_code == 1
    assert "the trainer has taken no batch for 0.5 s" in error.message
    assert api.get("/status")["queue"]["sequences"] == 3 * BATCH


def test_a_group_that_does_not_fit_a_batch_is_said_before_any_work(api: Client) -> None:
    with adder() as model:
        error = Running("serve", SUMS, *flags(api.port, model.base_url, group_size=8)).ended()
        asked = [request for request in model.requests if request.json]
    assert error is not None and error.exit_code == 2 and "group_size is 8" in error.message
    assert not asked


def test_no_trainer_within_the_set_time_is_said(tmp_path: Path) -> None:
    port = free_port()
    process = start(port, tmp_path / "state")
    try:
        with adder() as model:
            error = Running("serve", SUMS, *flags(port, model.base_url, trainer_patience_s=0.3)).ended()
    finally:
        process.kill()
        process.wait()
    assert error is not None and "no trainer" in error.message


@pytest.mark.slow
def test_groups_that_are_all_too_long_for_the_trainer_end_the_run_with_the_reason(tmp_path: Path) -> None:
    port = free_port()
    process = start(port, tmp_path / "state")
    try:
        Client(port).start(batch_size=BATCH, max_token_len=3)
        with adder() as model:
            error = Running("serve", SUMS, *flags(port, model.base_url)).ended()
    finally:
        process.kill()
        process.wait()
    assert error is not None and error.exit_code == 1
    assert "256 groups in a row" in error.message and "too long" in error.message
    assert "max_token_length" in error.hint
