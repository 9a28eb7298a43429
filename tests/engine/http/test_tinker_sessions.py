"""Sessions: finishing, listing, searching; and what outlives them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tinker
from tinker import types as tt

from tests.engine.http.engine_process import Server, batch, prompt
from tests.waiting import wait_until

Connect = Callable[..., tinker.ServiceClient]


def session_of(training: tinker.TrainingClient) -> str:
    return training.model_id.partition(":")[0]


def test_finishing_frees_the_adapters_and_later_work_is_refused(
    shared: Server, connect: Connect, model: str, rest: tinker.RestClient
) -> None:
    before = shared.metric("adapters")
    client = connect(shared)
    training = client.create_lora_training_client(model, rank=2)
    path = training.save_weights_for_sampler("kept").result().path
    assert shared.metric("adapters") == before + 1
    session = session_of(training)
    finish = {"reason": {"type": "errored"}, "detail": "first"}
    assert shared.ask("POST", f"/api/v1/sessions/{session}/finish", finish).status == 200
    assert (
        shared.ask("POST", f"/api/v1/sessions/{session}/finish", {"reason": {"type": "success"}}).status
        == 200
    )
    wait_until(lambda: shared.metric("adapters") == before)
    with pytest.raises(tinker.BadRequestError, match=r"finished by its client \(errored\)"):
        training.forward(batch(1), "cross_entropy").result()
    beat = shared.ask("POST", "/api/v1/session_heartbeat", {"session_id": session})
    assert beat.status == 410
    assert [found.tinker_path for found in rest.list_checkpoints(training.model_id).result().checkpoints] == [
        path
    ]
    fresh = connect(shared).create_sampling_client(model_path=path)
    assert len(fresh.compute_logprobs(prompt()).result()) == 6


def test_finishing_cancels_what_was_still_to_be_sampled(shared: Server, connect: Connect, model: str) -> None:
    training = connect(shared).create_lora_training_client(model, rank=2)
    sampler = training.save_weights_and_get_sampling_client()
    endless = tt.SamplingParams(max_tokens=240, stop=[])
    waiting = [sampler.sample(prompt(), 32, endless) for _ in range(4)]
    wait_until(lambda: shared.metric("calls_pending") >= len(waiting))
    finish = {"reason": {"type": "interrupted"}, "detail": ""}
    assert shared.ask("POST", f"/api/v1/sessions/{session_of(training)}/finish", finish).status == 200
    with pytest.raises(tinker.RequestFailedError, match="cancelled"):
        waiting[-1].result()


def test_sessions_can_be_listed_looked_at_moved_and_searched(
    shared: Server, connect: Connect, model: str, rest: tinker.RestClient
) -> None:
    client = connect(shared, user_metadata={"team": "blue"}, display_name="Nightly Run")
    training = client.create_lora_training_client(model, rank=2)
    sampler = training.save_weights_and_get_sampling_client()
    session = session_of(training)
    assert session in rest.list_sessions(limit=1000).result().sessions
    shown = rest.get_session(session).result()
    assert shown.training_run_ids == [training.model_id]
    assert shown.sampler_ids == [sampler._sampling_session_id]
    assert (shown.user_metadata, shown.display_name) == ({"team": "blue"}, "Nightly Run")
    rest.assign_session_project(session, "project-1").result()
    training.save_state("one").result()
    with pytest.warns(tinker.ExperimentalWarning):
        page = rest.search_sessions(tt.SessionSearchRequest(display_name="night run")).result()
        nobody = rest.search_sessions(tt.SessionSearchRequest(user_metadata={"team": "red"})).result()
    (found,) = [one for one in page.sessions if one.session_id == session]
    assert (found.project_id, found.checkpoints_count) == ("project-1", 1)
    assert found.status is not None and found.status.type == "active"
    assert session not in [one.session_id for one in nobody.sessions]
    with pytest.raises(RuntimeError, match="records no traces"):
        rest.export_session_trace(session).result()
    with pytest.raises(tinker.NotFoundError):
        rest.get_session("nobody").result()
