"""The wire as clients of the original server know it: getting batches."""

from __future__ import annotations

from tests.rollouts.conftest import Client, group, marks


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
