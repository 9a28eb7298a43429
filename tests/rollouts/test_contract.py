"""The wire as clients of the original server know it."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.rollouts.conftest import ENV, KEYS, RUN, Client, group, marks

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


def test_a_group_comes_back_with_all_fourteen_keys_and_without_unknown_ones(api: Client) -> None:
    api.register(batch_size=2)
    api.post("/scored_data", group(mark=5, unknown=1, overrides=[{"a": None}, {}]))
    expected = {**dict.fromkeys(KEYS), **group(mark=5), "overrides": [{"a": None}, {}]}
    assert api.get("/latest_example") == expected
    (served,) = api.batch()
    assert served == expected
    assert list(served) == list(KEYS) or served.keys() == set(KEYS)


def test_every_field_survives_the_way_through(api: Client) -> None:
    api.register(batch_size=2)
    full = group(
        mark=9,
        advantages=[[0.1, -2.5, 1e-07]] * 2,
        ref_logprobs=[[-1.0, -0.5, -0.25]] * 2,
        inference_logprobs=[[1.0, -0.5, -0.125]] * 2,
        messages=[
            [{"role": "user", "content": [{"type": "text", "text": "h\u00e9"}], "reward": None, "x": 1}]
        ]
        * 2,
        generation_params={"temperature": 0.7, "stop": ["</s>"]},
        overrides=[{"set_advantage_to_zero": True}, {}],
        group_overrides={"group_size": 2},
        images={"any": ["thing", 1, None]},
        distill_token_ids=[[[1, 2], [3, 4]]] * 2,
        distill_logprobs=[[[-0.1, -0.2], [-0.3, -0.4]]] * 2,
        env_id=None,
    )
    api.post("/scored_data", full)
    assert api.batch() == [full]


def test_numbers_are_coerced_as_leniently_as_the_original_does(api: Client) -> None:
    api.register()
    body = {
        "tokens": [["7", True, 1.0, 2**100]],
        "masks": [[1]],
        "scores": ["1.5", True, 1],
        "advantages": [[1, "2"]],
    }
    api.post("/scored_data", body)
    stored = api.ask("GET", "/latest_example").body
    found = json.loads(stored)
    assert found["tokens"] == [[7, 1, 1, 2**100]]
    assert found["scores"] == [1.5, 1.0, 1.0]
    assert b'"advantages":[[1.0,2.0]]' in stored


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"tokens": [[1, 1.5]]}, ["body", "tokens", 0, 1]),
        ({"tokens": [[None]]}, ["body", "tokens", 0, 0]),
        ({"tokens": None}, ["body", "tokens"]),
        ({"scores": ["x"]}, ["body", "scores", 0]),
        ({"messages": [[{"role": "user"}]]}, ["body", "messages", 0, 0]),
        ({"messages": [1]}, ["body", "messages", 0]),
        ({"overrides": [1]}, ["body", "overrides", 0]),
        ({"scores": [float("nan")]}, ["body", "scores", 0]),
        ({"scores": ["nan"]}, ["body", "scores", 0]),
        ({"scores": ["-Infinity"]}, ["body", "scores", 0]),
        ({"inference_logprobs": [[0.0, float("inf")]]}, ["body", "inference_logprobs", 0, 1]),
        ({"distill_logprobs": [[[float("-inf")]]]}, ["body", "distill_logprobs", 0, 0, 0]),
        ({"images": {"a": [1, float("nan")]}}, ["body", "images", "a", 1]),
        ({"generation_params": {"t": float("nan")}}, ["body", "generation_params", "t"]),
        ({"messages": [[{"role": 1, "content": float("inf")}]]}, ["body", "messages", 0, 0, "content"]),
    ],
)
def test_a_wrong_value_is_refused_with_the_path_of_the_field(
    api: Client, change: dict[str, Any], path: list[str | int]
) -> None:
    answer = api.ask("POST", "/scored_data", {**group(), **change})
    assert answer.status == 422
    (problem,) = answer.json()["detail"]
    assert problem.keys() == {"type", "loc", "msg", "input"}
    assert problem["loc"] == path
    assert api.get("/status")["queue_size"] == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"{bad",
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"tokens":[[1]],"masks":[[1]],"scores":[1e999]}',
        b'{"tokens":[[1]],"masks":[[1]],"scores":[0.5],"images":"\\ud800"}',
        b"[" * 5000,
        b'{"tokens":[[' + b"9" * 5000 + b']],"masks":[[1]],"scores":[0.5]}',
    ],
)
def test_a_body_that_is_no_group_is_refused(api: Client, raw: bytes) -> None:
    answer = api.ask("POST", "/scored_data", raw=raw)
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"][0] == "body"


def test_json_must_be_announced_as_such(api: Client) -> None:
    body = json.dumps(group()).encode()
    assert api.ask("POST", "/scored_data", raw=body, Content_Type="text/plain").status == 422
    assert (
        api.ask("POST", "/scored_data", raw=body, Content_Type="application/x+json; charset=utf-8").status
        == 200
    )


def test_lengths_within_a_group_need_not_agree(api: Client) -> None:
    body = {"tokens": [[1, 2], [3]], "masks": [[1]], "scores": [], "advantages": [[]]}
    assert api.post("/scored_data", body) == {"status": "received"}


def test_a_list_of_groups_is_taken_whole_or_not_at_all(api: Client) -> None:
    api.register()
    answer = api.ask("POST", "/scored_data_list", [group(), {"tokens": [[1]]}])
    assert answer.status == 422
    assert [problem["loc"] for problem in answer.json()["detail"]] == [
        ["body", 1, "masks"],
        ["body", 1, "scores"],
    ]
    assert api.get("/status")["queue_size"] == 0
    assert api.post("/scored_data_list", []) == {"status": "received", "groups_processed": 0}
    assert api.post("/scored_data_list", [group(mark=m) for m in range(4)]) == {
        "status": "received",
        "groups_processed": 4,
    }
    assert marks(api.batch()) == [0, 1, 2, 3]


def test_parts_of_groups_are_buffered_until_they_make_a_whole_one(api: Client) -> None:
    api.start(batch_size=6)
    env_id = api.add_env(group_size=6)
    assert api.post("/scored_data", group(3, 1, env_id=env_id)) == {"status": "buffered", "buffer_size": 3}
    assert api.post("/scored_data", group(2, 2, env_id=env_id)) == {"status": "buffered", "buffer_size": 5}
    assert api.post("/scored_data_list", [group(4, 3, env_id=env_id)]) == {
        "status": "received",
        "groups_processed": 1,
        "buffered": 1,
        "last_buffer_size": 3,
    }
    assert marks(api.batch()) == [2, 3]


def test_a_group_larger_than_its_environments_is_queued_because_no_part_can_complete_it(api: Client) -> None:
    api.start(batch_size=4)
    env_id = api.add_env(group_size=2)
    assert api.post("/scored_data", group(4, 1, env_id=env_id)) == {"status": "buffered", "buffer_size": 0}
    assert marks(api.batch()) == [1]


def test_batches_are_served_oldest_first_one_step_each(api: Client) -> None:
    api.register(starting_step=3)
    for mark in range(10):
        api.post("/scored_data", group(mark=mark))
    assert marks(api.batch()) == [0, 1, 2, 3]
    assert api.get("/status")["current_step"] == 4
    assert marks(api.batch()) == [4, 5, 6, 7]
    assert api.get("/status")["current_step"] == 5
    nothing = api.get("/batch")
    assert nothing["batch"] is None
    assert nothing["reason"] == "4 of 8 sequences are queued"
    assert api.get("/status")["current_step"] == 5
    assert api.get("/status")["queue_size"] == 2


def test_mixed_sizes_are_packed_in_the_order_their_packs_are_complete(api: Client) -> None:
    api.register()
    for mark, size in enumerate((2, 4, 2, 4, 2)):
        api.post("/scored_data", group(size, mark))
    assert marks(api.batch()) == [1, 0, 2]
    assert api.batch() is None


def test_odd_sizes_hold_up_nothing_and_say_so(api: Client) -> None:
    api.register()
    answer = api.post("/scored_data", group(9))
    assert answer == {"status": "received", "reason": "set aside: 9 sequences are more than a batch of 8"}
    assert "no sequences" in api.post("/scored_data", group(0))["reason"]
    assert "do not add up" in api.post("/scored_data", group(3))["reason"]
    assert api.get("/status")["queue"]["set_aside_groups"] == 3
    assert "no queued group can be part of a batch of 8" in api.get("/batch")["reason"]
    for mark in range(4):
        assert api.post("/scored_data", group(mark=mark)) == {"status": "received"}
    assert marks(api.batch()) == [0, 1, 2, 3]


def test_an_odd_size_joins_again_when_something_makes_it_fit(api: Client) -> None:
    api.register()
    assert "reason" in api.post("/scored_data", group(3, 1))
    for mark in range(2, 7):
        api.post("/scored_data", group(1, mark))
    assert api.get("/status")["queue"]["set_aside_groups"] == 0
    assert marks(api.batch()) == [1, 2, 3, 4, 5, 6]


def test_minimum_shares_come_first_and_groups_without_an_environment_fill_up(api: Client) -> None:
    api.start()
    slow, fast = api.add_env(min_batch_allocation=0.5), api.add_env()
    for mark in range(4):
        api.post("/scored_data", group(mark=mark, env_id=fast))
    assert "minimum share: 0" in api.get("/batch")["reason"]
    api.post("/scored_data", group(mark=9))
    for mark in (10, 11, 12):
        api.post("/scored_data", group(mark=mark, env_id=slow))
    assert marks(api.batch()) == [10, 11, 0, 1]
    assert marks(api.batch()) == [12, 2, 3, 9]


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


def test_answers_from_a_thousand_bytes_are_gzipped_for_those_who_accept_it(api: Client) -> None:
    api.register(batch_size=2)
    assert "content-encoding" not in api.ask("GET", "/info", Accept_Encoding="gzip").headers
    big = group(mark=123456789, inference_logprobs=[[0.25] * 300] * 2)
    for accepted, expected in (("gzip, deflate", "gzip"), ("identity", None), ("gzip;q=0", None)):
        api.post("/scored_data", big)
        for path in ("/latest_example", "/batch"):
            answer = api.ask("GET", path, Accept_Encoding=accepted)
            assert answer.headers.get("content-encoding") == expected
            found = answer.json()["batch"][0] if path == "/batch" else answer.json()
            assert found["inference_logprobs"] == big["inference_logprobs"]


def test_gzipped_bodies_are_inflated_and_broken_ones_refused(api: Client) -> None:
    packed = gzip.compress(json.dumps(group(mark=3)).encode())
    for header in ("gzip", "GZIP"):
        assert api.ask("POST", "/scored_data", raw=packed, Content_Encoding=header).status == 200
    assert api.ask("POST", "/scored_data", raw=b"", Content_Encoding="gzip").status == 422
    assert api.ask("POST", "/scored_data", raw=packed, Content_Encoding="deflate").status == 422
    for broken in (b"not gzip", packed[:-9], packed[:20], packed[:-4] + b"\0\0\0\0"):
        answer = api.ask("POST", "/scored_data", raw=broken, Content_Encoding="gzip")
        assert (answer.status, answer.body) == (400, b"Invalid gzip payload")


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
    assert figures["hermes_rollouts_queue_groups"] == "1"
    assert figures["hermes_rollouts_step"] == "1"
    assert float(figures['hermes_rollouts_requests_total{path="/scored_data",status="200"}']) >= 5
