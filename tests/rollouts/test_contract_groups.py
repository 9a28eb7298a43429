"""The wire as clients of the original server know it: posting groups."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.rollouts.conftest import KEYS, Client, group, marks


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


def test_gzipped_bodies_are_inflated_and_broken_ones_refused(api: Client) -> None:
    packed = gzip.compress(json.dumps(group(mark=3)).encode())
    for header in ("gzip", "GZIP"):
        assert api.ask("POST", "/scored_data", raw=packed, Content_Encoding=header).status == 200
    assert api.ask("POST", "/scored_data", raw=b"", Content_Encoding="gzip").status == 422
    assert api.ask("POST", "/scored_data", raw=packed, Content_Encoding="deflate").status == 422
    for broken in (b"not gzip", packed[:-9], packed[:20], packed[:-4] + b"\0\0\0\0"):
        answer = api.ask("POST", "/scored_data", raw=broken, Content_Encoding="gzip")
        assert (answer.status, answer.body) == (400, b"Invalid gzip payload")
