"""What does not fit, what breaks off, and models without words: the face over an engine in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from hermes.engine.checkpoints.store import CheckpointStore
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.server.app import build_app
from hermes.engine.server.openai.errors import RETRY_AFTER_S
from hermes.engine.server.openai.routes import openai_routes
from hermes.engine.server.state import open_state
from tests.engine.http.engine_process import tokens
from tests.engine.http.openai_parts import make_chat_model
from tests.engine.tiny import tiny_model
from tests.waiting import wait_until

Open = Callable[..., tuple[Engine, httpx.AsyncClient]]
SMALL = 64 * 768
"""Bytes that hold keys and values of 64 tokens."""


@pytest.fixture
def open_face(tmp_path: Path) -> Iterator[Open]:
    opened: list[tuple[Engine, CheckpointStore]] = []

    def one(folder: Path, **options: Any) -> tuple[Engine, httpx.AsyncClient]:
        engine = Engine(EngineOptions(str(folder), device="cpu", dtype="float32", **options))
        store = CheckpointStore(tmp_path / "state")
        opened.append((engine, store))
        engine.start()
        state = open_state(engine, store, ("tiny",), 300.0)
        transport = httpx.ASGITransport(build_app(openai_routes(state, "hermes")))
        return engine, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60)

    yield one
    for engine, store in opened:
        engine.close()
        store.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("size", "longest"), [(64, 1), (65, 0), (100, 16)])
async def test_what_can_never_fit_is_wrong_for_good_and_harms_nobody(
    open_face: Open, tiny_folder: Path, stream: bool, size: int, longest: int
) -> None:
    _, client = open_face(tiny_folder, kv_bytes=SMALL)
    body = {"model": "tiny", "prompt": tokens(size), "max_tokens": longest, "stream": stream}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert f"{size} tokens, but the context length is 64" in answer.json()["error"]["message"]
    fits = await client.post("/v1/completions", json={**body, "prompt": tokens(10), "stream": False})
    assert fits.status_code == 200


async def test_an_answer_without_a_limit_may_fill_the_cache_and_no_more(
    open_face: Open, tmp_path: Path
) -> None:
    """The model's own context is 32 times as long as what the memory for keys and values holds."""
    _, client = open_face(make_chat_model(tmp_path / "chat"), kv_bytes=SMALL)
    listed = (await client.get("/v1/models")).json()["data"]
    assert [one["max_model_len"] for one in listed] == [64]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "seed": 4, "stop_token_ids": []}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    ended = answer.json()["choices"][0]["finish_reason"]
    assert (ended, usage["total_tokens"]) == ("length", 64)


async def test_a_stream_that_breaks_off_says_so_and_has_no_final_mark(
    open_face: Open, tiny_folder: Path
) -> None:
    engine, client = open_face(tiny_folder)
    body = {"input_ids": tokens(5), "sampling_params": {"max_new_tokens": 400, "n": 16}, "stream": True}
    asking = asyncio.ensure_future(client.post("/generate", json=body))
    await asyncio.to_thread(wait_until, lambda: engine.stats().sampled_tokens > 0)
    await asyncio.to_thread(engine.close)
    *lines, last = (await asking).text.strip().split("\n\n")
    assert lines
    assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
    again = await client.post("/generate", json={"input_ids": tokens(5)})
    assert (again.status_code, again.headers["retry-after"]) == (503, str(RETRY_AFTER_S))


async def test_a_model_without_a_tokenizer_still_takes_and_gives_ids(open_face: Open, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path / "mute")
    _, client = open_face(tmp_path / "mute")
    params = {"max_new_tokens": 5, "temperature": 0}
    given = (await client.post("/generate", json={"input_ids": tokens(5), "sampling_params": params})).json()
    assert (len(given["output_ids"]), given["text"]) == (5, "")
    for path, body in (
        ("/generate", {"text": "hi"}),
        ("/v1/completions", {"model": "tiny", "prompt": tokens(5)}),
        ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}),
    ):
        refused = await client.post(path, json=body)
        assert refused.status_code == 400
        assert "has no tokenizer" in refused.json()["error"]["message"]
