from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hermes.core import Message, Sampling, ToolCall, Usage
from hermes.errors import ProviderError
from hermes.models.base import ChatRequest, OnDelta, StreamDelta
from hermes.models.remote.openai_chat import OpenAIChat
from tests.fakes.provider import FakeProvider, Reply, duplicated, raw, slow, text, tokens, tool_calls
from tests.models.clients import PRICE, TOOL, asking, both_ways, chat_on, ignore, target_for

FULL_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
    "completion_tokens_details": {"reasoning_tokens": 40},
}


@both_ways
async def test_an_answer_is_recorded_with_everything_the_server_said(on_delta: OnDelta | None) -> None:
    reply = text("It is 4.", reasoning="two and two", usage=FULL_USAGE)
    with FakeProvider([reply]) as provider:
        sampling = Sampling(temperature=0.5, seed=1)
        got = await chat_on(provider, price=PRICE).complete(asking(sampling=sampling), on_delta)
    assert got.message == Message.assistant("It is 4.", reasoning="two and two")
    call = got.call
    assert (call.model, call.endpoint, call.sampling) == ("lab/fake", provider.base_url, sampling)
    assert (call.finish_reason, call.attempts, call.parser, call.tokens) == ("stop", 1, None, None)
    assert call.usage == Usage(10, 60, 30, 10, 40)
    assert call.cost_usd == pytest.approx((10 * 1 + 60 * 0.5 + 30 * 2 + 50 * 10) / 1e6)
    assert call.latency_ms > 0
    assert call.raw["choices"][0]["message"]["content"] == "It is 4."
    assert call.raw["usage"] == FULL_USAGE
    assert json.loads(json.dumps(call.raw)) == call.raw


@both_ways
async def test_parallel_tool_calls_keep_their_order_ids_and_argument_text(on_delta: OnDelta | None) -> None:
    scripted = tool_calls(
        [("todo", '{"text":  "spaced"}'), ("terminal", {"command": "ls -la"}), ("todo", "{bad")]
    )
    with FakeProvider([scripted]) as provider:
        got = await chat_on(provider).complete(asking(tools=(TOOL,)), on_delta)
    first, second, bad = got.message.tool_calls
    assert first == ToolCall("call_0", "todo", '{"text":  "spaced"}')
    assert second == ToolCall("call_1", "terminal", '{"command": "ls -la"}')
    assert (bad.id, bad.name, bad.arguments) == ("call_2", "todo", "{bad")
    assert bad.error is not None
    assert got.call.finish_reason == "tool_calls"
    assert got.message.content == ""


async def test_the_request_carries_messages_tools_and_sampling() -> None:
    call = ToolCall("c1", "todo", "{}")
    request = ChatRequest(
        (Message.user("go"), Message.assistant(tool_calls=(call,)), Message.tool(call, "done")),
        tools=(TOOL,),
        sampling=Sampling(temperature=0.0, top_p=0.9, max_tokens=7, stop=("END",), seed=3),
    )
    with FakeProvider([text("ok")]) as provider:
        await chat_on(provider).complete(request)
    sent = provider.requests[0].json
    assert sent["model"] == "fake"
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["messages"][2]["tool_call_id"] == "c1"
    assert sent["tools"] == [{"type": "function", "function": TOOL}]
    expected = {"temperature": 0.0, "top_p": 0.9, "max_tokens": 7, "stop": ["END"], "seed": 3}
    assert {key: sent[key] for key in expected} == expected
    assert "stream" not in sent


async def test_deltas_arrive_in_order_and_add_up_to_the_answer() -> None:
    seen: list[StreamDelta] = []
    with FakeProvider([slow(0.001, text("Several words to stream.", reasoning="Let me think."))]) as provider:
        got = await chat_on(provider).complete(asking(), seen.append)
    assert len(seen) > 4
    assert "".join(delta.text for delta in seen) == got.message.content == "Several words to stream."
    assert "".join(delta.reasoning for delta in seen) == got.message.reasoning == "Let me think."
    assert got.call.first_token_ms is not None
    assert 0 < got.call.first_token_ms <= got.call.latency_ms
    assert provider.requests[0].json["stream_options"] == {"include_usage": True}


async def test_an_answer_that_is_not_streamed_has_no_first_token_time() -> None:
    with FakeProvider([text("hi")]) as provider:
        assert (await chat_on(provider).complete(asking())).call.first_token_ms is None


async def test_a_stream_with_repeated_chunks_gives_the_answer_once() -> None:
    reply = tool_calls([("todo", {"a": 1}), ("todo", {"b": 2})], content="Working on it.", usage=FULL_USAGE)
    with FakeProvider([duplicated(reply)]) as provider:
        got = await chat_on(provider).complete(asking(), ignore)
    assert got.message.content == "Working on it."
    assert [call.arguments for call in got.message.tool_calls] == ['{"a": 1}', '{"b": 2}']
    assert got.call.usage == Usage(10, 60, 30, 10, 40)


async def test_an_unknown_price_is_recorded_as_none() -> None:
    with FakeProvider([text("hi")]) as provider:
        assert (await chat_on(provider).complete(asking())).call.cost_usd is None


async def test_a_cost_the_server_reports_is_believed_over_our_prices() -> None:
    usage = {**FULL_USAGE, "cost": 0.125}
    with FakeProvider([text("hi", usage=usage), text("hi", usage=usage)]) as provider:
        assert (await chat_on(provider).complete(asking())).call.cost_usd == 0.125
        assert (await chat_on(provider, price=PRICE).complete(asking())).call.cost_usd == 0.125


@both_ways
async def test_no_reported_usage_means_no_known_cost(on_delta: OnDelta | None) -> None:
    with FakeProvider([text("hi", usage=None)]) as provider:
        call = (await chat_on(provider, price=PRICE).complete(asking(), on_delta)).call
    assert call.usage == Usage()
    assert call.cost_usd is None


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@both_ways
async def test_the_finish_reason_is_the_servers_own(reason: str, on_delta: OnDelta | None) -> None:
    with FakeProvider([text("cut he", finish_reason=reason)]) as provider:
        assert (await chat_on(provider).complete(asking(), on_delta)).call.finish_reason == reason


@both_ways
async def test_exact_tokens_are_kept_when_the_server_gives_them(on_delta: OnDelta | None) -> None:
    with FakeProvider([tokens([7, 8], [-0.5, -0.25], text="hi")]) as provider:
        extra = {"return_token_ids": True, "logprobs": True}
        got = await chat_on(provider, extra_body=extra).complete(asking(), on_delta)
    trace = got.call.tokens
    assert trace is not None
    assert (trace.prompt_ids, trace.sampled_ids, trace.logprobs) == ((1, 2, 3), (7, 8), (-0.5, -0.25))
    assert got.call.sampling.extra_body == extra
    assert provider.requests[0].json["return_token_ids"] is True


@pytest.mark.parametrize("reply", [tokens([7, 8], None), tokens([7, 8], [-0.5])], ids=["none", "too few"])
async def test_an_incomplete_trace_is_no_trace(reply: Reply) -> None:
    with FakeProvider([reply]) as provider:
        assert (await chat_on(provider).complete(asking())).call.tokens is None


async def test_sglangs_form_of_a_trace_is_read_with_its_weight_version() -> None:
    choice = {
        "message": {"role": "assistant", "content": "hi"},
        "finish_reason": "stop",
        "prompt_token_ids": [1, 2],
        "meta_info": {"output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, "x"]], "weight_version": "v3"},
    }
    with FakeProvider([raw({"choices": [choice]})]) as provider:
        trace = (await chat_on(provider).complete(asking())).call.tokens
    assert trace is not None
    assert (trace.prompt_ids, trace.sampled_ids, trace.logprobs) == ((1, 2), (7, 8), (-0.5, -0.25))
    assert trace.policy_version == "v3"


TEXT_CALL = 'Sure.\n<tool_call>\n{"name": "todo", "arguments": {"a": 1}}\n</tool_call>'


@both_ways
async def test_a_named_parser_finds_calls_in_plain_text_and_the_text_is_kept(
    on_delta: OnDelta | None,
) -> None:
    with FakeProvider([text(TEXT_CALL)]) as provider:
        got = await chat_on(provider, parser="hermes").complete(asking(tools=(TOOL,)), on_delta)
    (call,) = got.message.tool_calls
    assert (call.name, call.parsed()) == ("todo", {"a": 1})
    assert got.call.parser == "hermes"
    assert "<tool_call>" not in got.message.content
    assert got.call.raw["choices"][0]["message"]["content"] == TEXT_CALL


async def test_without_a_named_parser_text_that_looks_like_a_call_stays_text() -> None:
    with FakeProvider([text(TEXT_CALL)]) as provider:
        got = await chat_on(provider).complete(asking(tools=(TOOL,)))
    assert got.message == Message.assistant(TEXT_CALL)
    assert got.call.parser is None


async def test_structured_calls_are_taken_before_any_in_the_text() -> None:
    with FakeProvider([tool_calls([("real", {})], content=TEXT_CALL)]) as provider:
        got = await chat_on(provider, parser="hermes").complete(asking(tools=(TOOL,)))
    assert [call.name for call in got.message.tool_calls] == ["real"]
    assert got.message.content == TEXT_CALL
    assert got.call.parser is None


async def test_reasoning_is_returned_to_a_provider_that_wants_it() -> None:
    history = (Message.user("a"), Message.assistant("b", reasoning="because"), Message.user("c"))
    with FakeProvider([text("x"), text("x")]) as provider:
        await chat_on(provider).complete(ChatRequest(history))
        await chat_on(provider, send_reasoning=True).complete(ChatRequest(history))
    without, with_it = (request.json["messages"][1] for request in provider.requests)
    assert "reasoning_content" not in without
    assert with_it["reasoning_content"] == "because"


async def test_the_targets_own_key_is_sent_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-of-the-admin")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-openai")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-openai")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer custom\nX-Gateway-Key: gateway")
    with FakeProvider([text("x"), text("x"), text("x")]) as provider:
        await chat_on(provider).complete(asking())
        await chat_on(provider, key="sk-lab").complete(asking())
        await chat_on(provider, key="sk-lab").complete(asking(), ignore)
    without, with_key, streamed = (request.headers for request in provider.requests)
    assert "authorization" not in without
    assert with_key["authorization"] == streamed["authorization"] == "Bearer sk-lab"
    foreign = ("openai-organization", "openai-project", "x-gateway-key")
    assert not any(name in headers for headers in (without, with_key, streamed) for name in foreign)


@both_ways
async def test_requests_go_through_the_openai_client_and_tell_nothing_of_this_machine(
    on_delta: OnDelta | None,
) -> None:
    with FakeProvider([text("x")]) as provider:
        await chat_on(provider).complete(asking(), on_delta)
    headers = provider.requests[0].headers
    assert headers["user-agent"].startswith("AsyncOpenAI/Python ")
    assert not [name for name in headers if name.lower().startswith("x-stainless")]


def test_the_openai_package_is_imported_by_the_first_call_and_not_before() -> None:
    program = (
        "import asyncio, sys\n"
        "from tests.fakes.provider import FakeProvider, text\n"
        "from tests.models.clients import asking, chat_on\n"
        "with FakeProvider([text('x')]) as provider:\n"
        "    chat = chat_on(provider)\n"
        "    print({'openai', 'httpx2'} & set(sys.modules))\n"
        "    asyncio.run(chat.complete(asking()))\n"
        "    print('openai' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\nTrue\n"


@both_ways
async def test_fields_that_the_openai_package_does_not_know_are_kept(on_delta: OnDelta | None) -> None:
    message = {"role": "assistant", "content": "hi", "reasoning_details": [{"type": "x", "data": "e30="}]}
    whole = {
        "choices": [{"message": message, "finish_reason": "stop", "matched_stop": 151645}],
        "metadata": {"weight_version": "v3"},
        "timings": {"predicted_ms": 1.5},
    }
    with FakeProvider([raw(whole)]) as provider:
        assert (await chat_on(provider).complete(asking(), on_delta)).call.raw == whole


async def test_a_proxy_in_the_environment_is_not_asked_for_a_loopback_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with FakeProvider([text("hi")]) as provider:
        assert (await chat_on(provider, max_retries=0).complete(asking())).message.content == "hi"


async def test_a_proxy_in_the_environment_is_asked_for_any_other_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeProvider([]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.base_url.removesuffix("/v1"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        chat = OpenAIChat(target_for("http://models.example/v1"))
        with pytest.raises(ProviderError):
            await chat.complete(asking())
        await chat.close()
    assert proxy.requests[0].path == "http://models.example/v1/chat/completions"


async def test_text_without_a_utf8_form_can_be_sent_back() -> None:
    with FakeProvider([text("ok")]) as provider:
        await chat_on(provider).complete(asking("lone \ud800 surrogate and 漢字"))
    assert provider.requests[0].json["messages"][0]["content"] == "lone \ud800 surrogate and 漢字"


async def test_one_model_can_be_closed_and_used_again() -> None:
    with FakeProvider([text("a"), text("b")]) as provider:
        chat = chat_on(provider)
        await chat.close()
        assert (await chat.complete(asking())).message.content == "a"
        await chat.close()
        assert (await chat.complete(asking())).message.content == "b"
        await chat.close()


async def test_a_server_that_ignores_the_wish_to_stream_is_understood() -> None:
    whole = {
        "choices": [{"message": {"role": "assistant", "content": "all at once"}, "finish_reason": "stop"}]
    }
    seen: list[StreamDelta] = []
    with FakeProvider([raw(whole)]) as provider:
        got = await chat_on(provider).complete(asking(), seen.append)
    assert got.message.content == "all at once"
    assert seen == [StreamDelta("all at once")]


async def test_numbers_that_json_does_not_have_are_recorded_as_null() -> None:
    choice = {
        "message": {"content": "x"},
        "finish_reason": "stop",
        "logprobs": {"content": [{"logprob": float("nan")}]},
    }
    with FakeProvider([raw({"choices": [choice], "score": float("inf")})]) as provider:
        got = await chat_on(provider).complete(asking())
    assert got.call.raw["score"] is None
    assert got.call.raw["choices"][0]["logprobs"] == {"content": [{"logprob": None}]}
