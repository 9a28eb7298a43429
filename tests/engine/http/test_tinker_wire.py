"""The protocol beneath the SDK: order, repeats, polls, versions, bad bodies, who may ask."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from tinker.proto import tinker_public_pb2 as pb

from tests.cli.process import hermes
from tests.engine.http.engine_process import KEY, Server
from tests.engine.http.tinker_wire import API, Raw, filled


@pytest.fixture
def raw(shared: Server, model: str) -> Iterator[Raw]:
    one = Raw(shared, model)
    yield one
    shared.post(f"sessions/{one.session}/finish", {"reason": {"type": "success"}})


@pytest.fixture
def twin(shared: Server, model: str) -> Iterator[Raw]:
    one = Raw(shared, model)
    yield one
    shared.post(f"sessions/{one.session}/finish", {"reason": {"type": "success"}})


def step_metrics(client: Raw, step: Any) -> dict[str, float]:
    """Those of an update, without the memory of the process, which two tests never share to the byte."""
    metrics = client.result(step)["metrics"]
    return {name: value for name, value in metrics.items() if name != "peak_bytes"}


def test_calls_run_by_number_although_the_first_arrives_last(raw: Raw, twin: Raw) -> None:
    late = [raw.step(3), raw.forward_backward(2, seed=2).json()]
    assert [raw.server.metric("calls_pending") >= 2, raw.forward_backward(1, seed=1).status] == [True, 200]
    after = raw.trained(raw.forward_backward(4, seed=3))
    norm = step_metrics(raw, late[0])
    for number, seed in ((1, 1), (2, 2)):
        twin.forward_backward(number, seed=seed)
    assert step_metrics(twin, twin.step(3)) == pytest.approx(norm, rel=1e-5)
    same = twin.trained(twin.forward_backward(4, seed=3))
    assert same.metrics["loss:sum"] == pytest.approx(after.metrics["loss:sum"], rel=1e-5)


def test_a_submission_sent_again_is_the_same_call_and_counts_once(raw: Raw, twin: Raw, model: str) -> None:
    assert raw.create(model) == raw.created
    answers = [raw.forward_backward(1).json() for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    steps = [raw.step(2), raw.step(2)]
    assert steps[0] == steps[1]
    twin.forward_backward(1)
    assert step_metrics(raw, steps[0]) == pytest.approx(step_metrics(twin, twin.step(2)), rel=1e-5)


def test_a_sampler_save_sent_again_keeps_its_sampler_although_its_number_changed(raw: Raw) -> None:
    asked = {"model_id": raw.model, "seq_id": 1, "type": "save_weights_for_sampler"}
    answers = [
        raw.server.post("save_weights_for_sampler", {**asked, "sampling_session_seq_id": number})
        for number in (3, 4)
    ]
    assert answers[0] == answers[1]
    result = raw.result(answers[0])
    assert (result["path"], result["sampling_session_id"]) == (None, f"{raw.session}:sample:3")


def test_samplers_and_samples_are_made_once(raw: Raw, model: str) -> None:
    asked = {"session_id": raw.session, "sampling_session_seq_id": 9, "base_model": model}
    samplers = [raw.server.post("create_sampling_session", asked)["sampling_session_id"] for _ in range(2)]
    assert samplers[0] == samplers[1]
    before = raw.server.metric("sampled_tokens_total")
    sample = {
        "sampling_session_id": samplers[0],
        "seq_id": 0,
        "num_samples": 2,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]},
        "sampling_params": {"max_tokens": 3, "stop": [], "min_p": 0.1},
    }
    accepted = [raw.server.post("asample", sample) for _ in range(3)]
    assert accepted[0] == accepted[1] == accepted[2]
    assert len(set(accepted[0]["sample_sequence_ids"])) == 2
    answer = pb.SampleResponse()
    answer.ParseFromString(raw.poll(accepted[0]).body)
    assert [len(one.tokens) // 4 for one in answer.sequences] == [3, 3]
    assert raw.server.metric("sampled_tokens_total") == before + 6
    again = raw.poll(accepted[0]).body  # the answer may have been lost on the way
    assert again == answer.SerializeToString()
    clones = [raw.server.post("join_sampling_session", {"sampling_session_id": samplers[0]}) for _ in "ab"]
    assert [one["client_counter"] for one in clones] == [1, 2]


@pytest.mark.slow
def test_a_poll_is_held_and_then_told_to_come_again_and_why(raw: Raw) -> None:
    answer = raw.poll(raw.step(2))
    assert answer.status == 408
    assert answer.json() == {
        "queue_state": "paused_capacity",
        "queue_state_reason": f"call 1 of {raw.model} has not arrived",
    }


def test_a_large_result_is_announced_with_its_size_once(raw: Raw) -> None:
    message = pb.ForwardBackwardRequest(model_id=raw.model, seq_id=1, loss_fn="cross_entropy")
    message.forward_only = True
    wide = filled(message, 0).data[0].loss_fn_inputs
    for name, dtype in (("target_tokens", "<i8"), ("weights", "<f4")):
        wide[name].dense = np.zeros((7, 40_000), dtype).tobytes()
        wide[name].shape.extend((7, 40_000))
    accepted = raw.server.ask("POST", f"{API}/forward_backward", raw=message.SerializeToString()).json()
    announced = raw.poll(accepted, allow_metadata_only=True).json()
    body = raw.poll(accepted, allow_metadata_only=False).body
    assert announced == {"status": "complete_metadata", "response_payload_size": len(body)}
    assert len(body) > 7 * 40_000 * 4


def test_a_compressed_body_is_understood(raw: Raw, twin: Raw) -> None:
    compressed = raw.trained(raw.forward_backward(1, Content_Encoding="zstd"))
    assert compressed.metrics == twin.trained(twin.forward_backward(1)).metrics


def test_the_connection_that_the_sdk_reads_its_flags_over_is_closed(shared: Server) -> None:
    connection = http.client.HTTPConnection(urlsplit(shared.url).netloc)
    headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
    for path, closes in (("client/dynamic_config", False), ("client/config", True)):
        connection.request("POST", f"{API}/{path}", b'{"sdk_version": "99.1"}', headers)
        response = connection.getresponse()
        response.read()
        assert (response.status, response.will_close) == (200, closes)


def test_flags_keep_the_sdk_on_its_defaults_and_telemetry_is_taken(shared: Server) -> None:
    assert shared.post("client/config", {"sdk_version": "99.1", "new": True}) == {}
    assert shared.post("client/dynamic_config", {"sdk_version": "99.1"})["sample_cancel_enabled"] is True
    assert shared.post("telemetry", {"events": [{"x": 1}], "platform": "p", "session_id": "s"}) == {
        "status": "accepted"
    }
    assert (
        shared.ask("GET", "/health").json() == shared.ask("GET", f"{API}/healthz").json() == {"status": "ok"}
    )


BAD_REQUESTS: list[tuple[str, str, Any, int]] = [
    ("POST", "create_model", {"session_id": "x"}, 422),
    ("POST", "optim_step", {"model_id": "x:train:0", "seq_id": "first"}, 422),
    ("POST", "asample", {"prompt": {"chunks": []}}, 422),
    ("POST", "get_info", {"model_id": "nobody:train:0"}, 404),
    ("POST", "get_info", {"model_id": "nobody"}, 404),
    ("POST", "create_custom_loss", {}, 400),
    ("POST", "weights_info", {"tinker_path": "nonsense"}, 400),
    ("GET", "samplers/nobody:sample:0", None, 404),
    ("GET", "training_runs/nobody", None, 404),
    ("GET", "training_runs?limit=-1", None, 422),
    ("GET", "sessions/nobody", None, 404),
    ("DELETE", "training_runs/a/checkpoints/weights/b", None, 404),
    ("DELETE", "training_runs/a/checkpoints/archives/b", None, 404),
    ("GET", "files/a/weights/b/..%2f..%2fsecret", None, 404),
    ("GET", "unheard_of", None, 404),
    ("PUT", "create_session", {}, 405),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), BAD_REQUESTS)
def test_a_bad_request_is_refused_with_a_reason_in_json(
    shared: Server, method: str, path: str, body: Any, status: int
) -> None:
    answer = shared.ask(method, f"{API}/{path}", body)
    assert answer.status == status
    assert answer.json()["detail"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[1,2]", b'{"session_id": 5}'])
def test_a_body_that_is_not_what_it_should_be_is_refused(shared: Server, body: bytes) -> None:
    assert shared.ask("POST", f"{API}/session_heartbeat", raw=body).status == 422
    assert shared.ask("POST", f"{API}/forward_backward", raw=b"\xff" + body).status == 400
    zstd = shared.ask("POST", f"{API}/forward_backward", raw=b"x" + body, Content_Encoding="zstd")
    assert zstd.status == 400
    assert shared.ask("POST", f"{API}/forward_backward", raw=body, Content_Encoding="br").status == 415


def test_a_broken_tensor_fails_its_call_and_not_the_ones_after(raw: Raw) -> None:
    message = filled(pb.ForwardBackwardRequest(model_id=raw.model, seq_id=1, loss_fn="cross_entropy"), 0)
    message.data[0].loss_fn_inputs["weights"].shape.extend((5, 5))
    accepted = raw.server.ask("POST", f"{API}/forward_backward", raw=message.SerializeToString()).json()
    failed = raw.result(accepted)
    assert failed["category"] == "user"
    assert "datum 0, weights: 7 values do not fill the shape [5, 5]" in failed["error"]
    assert raw.trained(raw.forward_backward(2)).metrics["loss:sum"] > 0


def test_web_pages_of_other_sites_are_refused(shared: Server) -> None:
    for headers in (
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
    ):
        assert shared.ask("POST", f"{API}/create_session", {}, **headers).status == 403


def test_the_command_line_shows_what_a_running_engine_holds(raw: Raw, tmp_path: Path) -> None:
    saved = raw.server.post("save_weights", {"model_id": raw.model, "seq_id": 1, "path": "shown"})
    raw.result(saved)
    text = hermes(tmp_path, "engine", "adapters", "--url", raw.server.url).stdout
    assert f"{raw.model}  2" in text
    assert "weights/shown" in text
    rows = json.loads(hermes(tmp_path, "engine", "adapters", "--json", "--url", raw.server.url).stdout)
    (row,) = [row for row in rows if row["training_run_id"] == raw.model]
    assert row["checkpoints"][0]["checkpoint_id"] == "weights/shown"
    missing = hermes(tmp_path, "engine", "models", "--url", "http://127.0.0.1:9")
    assert "no engine answers" in missing.stderr
