"""The wire as clients of the original server know it: trainer, environments, status."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.rollouts.conftest import ENV, RUN, Client, group, marks

EXAMPLE_KEYS = {
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "generation_params",
    "inference_logprobs",
    "messages",
    "images",
}


def test_before_a_trainer_registers_everything_is_empty(api: Client) -> None:
    assert api.get("/") == {"message": "AtroposLib API"}
    assert api.get("/wandb_info") == {"group": None, "project": None}
    assert api.get("/info") == {"batch_size": -1, "max_token_len": -1}
    status = api.get("/status")
    assert (status["current_step"], status["queue_size"]) == (0, 0)
    example = api.get("/latest_example")
    assert example.keys() == EXAMPLE_KEYS
    assert all(value == [] for value in example.values())
    assert api.get("/batch") == {
        "status": "error",
        "message": "Trainer not registered. Call /register first.",
        "batch": [],
    }


def test_the_first_registration_sets_up_the_run_and_later_ones_change_nothing(api: Client) -> None:
    first, second = api.register(), api.register(batch_size=99, wandb_group="other")
    assert first["uuid"] != second["uuid"]
    assert isinstance(first["uuid"], int)
    assert first["uuid"].bit_length() > 64
    assert api.get("/info") == {"batch_size": 8, "max_token_len": 512}
    assert api.get("/wandb_info") == {"group": "group", "project": "project"}


def test_environments_wait_until_the_trainer_asks_for_a_batch(api: Client) -> None:
    api.register(starting_step=7)
    assert api.post("/register-env", ENV) == {"status": "wait for trainer to start"}
    assert api.batch() is None
    assert api.post("/register-env", ENV) == {
        "status": "success",
        "env_id": 0,
        "wandb_name": "env_0",
        "checkpoint_dir": "/checkpoints",
        "starting_step": 7,
        "checkpoint_interval": 100,
        "num_steps": 1000,
    }
    assert api.post("/register-env", {**ENV, "desired_name": "b"})["wandb_name"] == "b_0"
    again = api.post("/register-env", ENV)
    assert (again["env_id"], again["wandb_name"]) == (2, "env_1")


def test_asking_for_a_batch_without_a_trainer_does_not_let_environments_in(api: Client) -> None:
    assert api.get("/batch")["status"] == "error"
    assert api.post("/register-env", ENV) == {"status": "wait for trainer to start"}


def test_data_that_comes_before_the_trainer_is_kept_and_the_trainer_can_still_register(api: Client) -> None:
    for mark in range(4):
        assert api.post("/scored_data", group(mark=mark)) == {"status": "received"}
    api.register()
    assert marks(api.batch()) == [0, 1, 2, 3]


def test_reset_forgets_everything(api: Client) -> None:
    api.start()
    api.add_env()
    api.post("/scored_data", group())
    api.reset()
    assert api.get("/info") == {"batch_size": -1, "max_token_len": -1}
    assert api.get("/batch")["status"] == "error"
    assert api.get("/latest_example").keys() == EXAMPLE_KEYS
    api.start(batch_size=2)
    assert api.add_env() == 0


def test_an_unknown_environment_is_404_and_never_another_one(api: Client) -> None:
    api.start()
    api.add_env()
    for env_id in (-1, 1, 10**30):
        assert api.ask("GET", "/status-env", {"env_id": env_id}).status == 404
        assert api.ask("POST", "/scored_data", group(env_id=env_id)).status == 404
        failure = api.post("/disconnect-env", {"env_id": env_id})
        assert failure["status"] == "failure"
        assert str(env_id) in failure["error"]
    assert api.post("/disconnect-env", {"env_id": 0}) == {"status": "success"}


def test_status_env_takes_a_body_on_a_get_and_nothing_else(api: Client) -> None:
    api.start()
    api.add_env()
    assert api.ask("GET", "/status-env?env_id=0").status == 422
    assert api.ask("POST", "/status-env", {"env_id": 0}).status == 405
    assert api.status_env(0) == {
        "current_step": 0,
        "queue_size": 0,
        "unallocated_fraction": 1.0,
        "self_queue_size": 0,
        "max_group_size": 1,
        "env_weight": 1.0,
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/register", {**RUN, "batch_size": 0}),
        ("/register", {**RUN, "wandb_group": None}),
        ("/register-env", {**ENV, "group_size": 0}),
        ("/register-env", {**ENV, "weight": None}),
        ("/register-env", {**ENV, "weight": float("nan")}),
        ("/register-env", {**ENV, "min_batch_allocation": 7.0}),
        ("/register-env", {**ENV, "min_batch_allocation": -1}),
        ("/disconnect-env", {}),
        ("/batch/ack", {"lease_id": "x"}),
    ],
)
def test_senseless_registrations_are_refused(api: Client, path: str, body: dict[str, Any]) -> None:
    assert api.ask("POST", path, body).status == 422


def test_unknown_paths_and_methods_are_answered_as_such(api: Client) -> None:
    assert api.ask("GET", "/nope").status == 404
    assert api.ask("HEAD", "/batch").status == 405
    refused = api.ask("PUT", "/batch")
    assert (refused.status, refused.headers["allow"]) == (405, "GET")


def test_the_api_describes_itself(api: Client) -> None:
    document = api.get("/openapi.json")
    assert document["paths"].keys() >= {"/batch", "/scored_data", "/status-env"}
    page = api.ask("GET", "/docs")
    assert "text/html" in page.headers["content-type"]
    assert b"/scored_data_list" in page.body
    assert b"http://" not in page.body


def test_status_and_metrics_tell_depth_rates_and_ages(api: Client) -> None:
    api.start()
    env_id = api.add_env()
    for mark in range(5):
        api.post("/scored_data", group(mark=mark, env_id=env_id))
    api.batch()
    status = api.get("/status")
    assert status["queue"]["groups"] == 1
    assert status["queue"]["sequences"] == 2
    assert status["queue"]["oldest_age_s"] >= 0
    assert status["rates_per_s"]["groups"] > 0
    assert status["rates_per_s"]["batches"] > 0
    assert status["envs"][0]["connected"] is True
    text = api.ask("GET", "/metrics").body.decode()
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    typed, helped = (set(re.findall(rf"^# {word} (\S+) \S", text, re.M)) for word in ("TYPE", "HELP"))
    assert typed == helped, "every metric has a meaning"
    assert figures["hermes_rollouts_queue_groups"] == "1"
    assert figures["hermes_rollouts_step"] == "1"
    assert float(figures['hermes_rollouts_requests_total{path="/scored_data",status="200"}']) >= 5
