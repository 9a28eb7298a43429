"""The model of a rollout behind one address: what it answers, refuses, records and does not train."""

from __future__ import annotations

import array
import asyncio
import dataclasses
import http.client
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from hermes.config.load import load
from hermes.core import Sampling, TokenTrace
from hermes.envs.agent.sequences import build_sequences
from hermes.envs.programs.record import trained_calls
from hermes.gateway import journal as journals
from hermes.gateway.journal import Journal
from hermes.gateway.sampled import SampledGateway, SampledRollout
from hermes.gateway.service import Settling, recordings_dir
from hermes.models.render.chat import ChatRenderer
from hermes.models.tokens.chat import TokenChat
from hermes.store import Reader
from tests.envs.templates import bundled_tokenizer
from tests.envs.token_cases import encode_plain
from tests.envs.token_source import Answer, ScriptedSource, said
from tests.gateway.requests import ROUTES, body_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHELL = {"name": "shell", "description": "", "parameters": {"type": "object", "properties": {}}}
CONTEXT = 2_000


@pytest.fixture
def tokenizer(bundled_home: Path) -> PreTrainedTokenizerBase:
    return bundled_tokenizer(bundled_home)


def policy(tokenizer: PreTrainedTokenizerBase, text: str = "Done.") -> TokenChat:
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        return said([*encode_plain(tokenizer, text, 3), end])

    return TokenChat(ScriptedSource(answer), ChatRenderer.of(tokenizer, "hermes", CONTEXT))


@asynccontextmanager
async def served(rollout: SampledRollout) -> AsyncIterator[str]:
    gateway = SampledGateway()
    await gateway.open()
    try:
        with gateway.rollout(rollout) as path:
            yield f"{gateway.url}{path}"
    finally:
        await gateway.close()


async def ask(url: str, route: str, body: object = None, **headers: str) -> tuple[int, Any]:
    def send() -> tuple[int, Any]:
        host, _, path = url.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host, timeout=60)
        data = None if body is None else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET" if body is None else "POST", f"/{path}/{route}".rstrip("/"), data, names)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read() or b"null")

    return await asyncio.to_thread(send)


def chat_body(**fields: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": SHELL}]
    return {"model": "m", "messages": [{"role": "user", "content": "Do it."}], "tools": tools, **fields}


FORCED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("chat/completions", chat_body(tool_choice="required")),
    ("chat/completions", chat_body(response_format={"type": "json_object"})),
    ("chat/completions", chat_body(presence_penalty=1.0)),
    (
        "responses",
        {"model": "m", "input": "Do it.", "text": {"format": {"type": "json_schema", "name": "a"}}},
    ),
    (
        "messages",
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "Do it."}],
            "tools": [{"name": "shell", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"},
        },
    ),
)


@pytest.mark.parametrize("route", ["chat/completions", "messages", "responses", "messages/count_tokens"])
@pytest.mark.parametrize("half", [r"\ud800", r"a \uDFFF b", "\ud800"])
async def test_half_a_surrogate_pair_is_refused(
    tokenizer: PreTrainedTokenizerBase, route: str, half: str
) -> None:
    model = policy(tokenizer)
    rollout = SampledRollout(model, Sampling(), tokens=model)
    body = '{"model": "m", "max_tokens": 9, "NAME": [{"role": "user", "content": "TEXT"}]}'
    body = body.replace("NAME", "input" if route == "responses" else "messages")
    async with served(rollout) as url, httpx.AsyncClient() as client:
        data = body.replace("TEXT", half).encode("utf-8", "surrogatepass")
        refused = await client.post(f"{url}/v1/{route}", content=data)
        assert refused.status_code == 400 and "surrogate" in refused.text
        whole = await client.post(f"{url}/v1/{route}", content=body.replace("TEXT", r"\ud83d\ude00"))
        assert whole.status_code == 200


@pytest.mark.parametrize(("route", "body"), FORCED)
async def test_an_answer_that_was_to_be_forced_is_given_freely_and_not_trained(
    tokenizer: PreTrainedTokenizerBase, route: str, body: dict[str, Any]
) -> None:
    rollout = SampledRollout(policy(tokenizer), Sampling())
    async with served(rollout) as url:
        assert (await ask(url, f"v1/{route}", body))[0] == 200
        assert (await ask(url, "v1/chat/completions", chat_body(tool_choice="auto")))[0] == 200
    first, second = rollout.calls
    assert first.not_honoured and not second.not_honoured
    assert trained_calls(rollout.calls, train_side=True) == [second]
    strict = SampledRollout(policy(tokenizer), Sampling(), strict=True)
    async with served(strict) as url:
        assert (await ask(url, f"v1/{route}", body))[0] == 400
    assert strict.calls == [] and strict.failure is not None


async def test_a_call_beside_the_task_is_trained_only_if_asked_for(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rollout = SampledRollout(policy(tokenizer), Sampling())
    title = {"model": "m", "messages": [{"role": "user", "content": "A title, please."}]}
    async with served(rollout) as url:
        for body in (title, chat_body()):
            assert (await ask(url, "v1/chat/completions", body))[0] == 200
    assert [call.offers_tools for call in trained_calls(rollout.calls, train_side=False)] == [True]
    assert len(trained_calls(rollout.calls, train_side=True)) == 2
    assert len(trained_calls(rollout.calls[:1], train_side=False)) == 1, "without tools it is the task"


async def test_the_clients_sampling_gives_way_to_the_trainers(tokenizer: PreTrainedTokenizerBase) -> None:
    rollout = SampledRollout(policy(tokenizer), Sampling(temperature=1.0, max_tokens=50), overrides=True)
    async with served(rollout) as url:
        await ask(url, "v1/chat/completions", chat_body(temperature=0.0, top_p=0.1, max_tokens=32_000))
    (call,) = rollout.calls
    sampling = call.reply.call.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (1.0, None, 50)


async def test_who_hangs_up_ends_the_sampling(tokenizer: PreTrainedTokenizerBase) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedSource):
        async def complete_tokens(self, *arguments: Any, **named: Any) -> Any:
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                ended.set()

    chat = TokenChat(Slow(lambda ids, params: said([])), ChatRenderer.of(tokenizer, "hermes", CONTEXT))
    rollout = SampledRollout(chat, Sampling())
    async with served(rollout) as url:
        host, _, path = url.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host, timeout=60)
        await asyncio.to_thread(
            connection.request, "POST", f"/{path}/v1/chat/completions", json.dumps(chat_body()).encode()
        )
        await begun.wait()
        connection.close()
        await asyncio.wait_for(ended.wait(), 60)
        await rollout.settled()
    assert (rollout.cancelled, rollout.calls, rollout.failure) == (1, [], None)


async def test_tokens_are_counted_as_they_are_sampled(tokenizer: PreTrainedTokenizerBase) -> None:
    chat = policy(tokenizer)
    rollout = SampledRollout(chat, Sampling(), chat)
    body = body_of("messages")
    async with served(rollout) as url:
        _, counted = await ask(url, "v1/messages/count_tokens", body)
        _, answered = await ask(url, "v1/messages", {**body, "stream": False})
    trace = rollout.calls[0].reply.call.tokens
    assert trace is not None
    assert counted == {"input_tokens": len(trace.prompt_ids)}
    assert answered["usage"]["input_tokens"] == len(trace.prompt_ids)
    assert answered["usage"]["output_tokens"] == len(trace.sampled_ids)


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
async def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_clients_act_on(
    tokenizer: PreTrainedTokenizerBase, protocol: str
) -> None:
    rollout = SampledRollout(policy(tokenizer), Sampling())
    body = body_of(protocol, "word " * CONTEXT)
    async with served(rollout) as url:
        status, reply = await ask(url, f"v1/{ROUTES[protocol]}", body)
    assert status == 400
    if protocol == "messages":
        assert reply["error"]["message"].startswith("prompt is too long")
    else:
        assert reply["error"]["code"] == "context_length_exceeded"


async def test_other_routes_answer_as_a_provider_does(tokenizer: PreTrainedTokenizerBase) -> None:
    rollout = SampledRollout(policy(tokenizer), Sampling())
    async with served(rollout) as url:
        assert await ask(url, "") == (200, {"status": "recording"})
        assert (await ask(url, "v1/models"))[1]["data"][0]["id"] == "test/scripted"
        assert (await ask(url, "v1/v1/models", anthropic_version="2023-06-01"))[1]["data"][0][
            "type"
        ] == "model"
        for route, body, status in (
            ("v1/nowhere", None, 404),
            ("reward", {"reward": 1}, 404),
            ("v1/chat/completions", chat_body(n=2), 400),
            ("v1/chat/completions", {"model": "m", "messages": []}, 400),
        ):
            assert (await ask(url, route, body))[0] == status, route
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
        shown = [{"role": "user", "content": [{"type": "text", "text": "See"}, image]}]
        assert (await ask(url, "v1/chat/completions", chat_body(messages=shown)))[0] == 400
        assert (await ask(url, "v1/models", connection="upgrade", upgrade="websocket"))[0] == 426
    assert rollout.calls == []


async def test_a_call_is_on_disk_before_its_answer_and_a_killed_rollout_keeps_its_tokens(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is settled without the rollout, as after kill -9, has the ids and logprobs that were sampled."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    config = load()
    journal = Journal(recordings_dir(config), {})
    held = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def keep(call: journals.RecordedCall) -> None:
        await asyncio.wrap_future(journal.append("group", call))
        loop.call_soon_threadsafe(held.set)

    rollout = SampledRollout(policy(tokenizer), Sampling(), keep=keep)
    async with served(rollout) as url:
        assert (await ask(url, "v1/chat/completions", chat_body()))[0] == 200
        assert held.is_set()
    path = journal.rotate("group")
    assert path is not None
    settled = Settling(config).run((journals.Recording(path),))
    journal.close()
    with Reader(tmp_path / "hermes.db") as reader:
        trajectory = reader.get(settled.trajectories[0])
    calls = [step.call for step in trajectory.steps if step.call]
    assert [_stored(call.tokens) for call in calls] == [
        _stored(call.reply.call.tokens) for call in rollout.calls
    ]
    assert build_sequences(calls).trainable


def _stored(trace: TokenTrace | None) -> TokenTrace:
    """The trace with its logprobs as the store keeps them: in single precision."""
    assert trace is not None
    return dataclasses.replace(trace, logprobs=tuple(array.array("f", trace.logprobs)))


async def test_a_rollout_is_settled_when_no_call_is_under_way(tokenizer: PreTrainedTokenizerBase) -> None:
    release = threading.Event()

    async def keep(call: journals.RecordedCall) -> None:
        await asyncio.to_thread(release.wait)

    rollout = SampledRollout(policy(tokenizer), Sampling(), keep=keep)
    async with served(rollout) as url:
        asking = asyncio.create_task(ask(url, "v1/chat/completions", chat_body()))
        await asyncio.to_thread(wait_until, lambda: bool(rollout.calls))
        settling = asyncio.create_task(rollout.settled())
        await asyncio.sleep(0.05)
        assert not settling.done(), "sampled, and not recorded yet"
        release.set()
        await settling
        assert (await asking)[0] == 200
