"""Clients of Responses and Messages in front of chat completions."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from hermes.config.load import Config
from hermes.core import Trajectory
from hermes.gateway.wire import Protocol
from tests.gateway.conftest import gateway, stored
from tests.gateway.requests import body_of, post
from tests.gateway.scripted import Call, Json, Reply, ScriptedProvider

CHAT = frozenset({Protocol.CHAT})
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TWO_CALLS = (Call("bash", '{"command":  "ls"}'), Call("spawn", '{"message": "go"}'))
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider(lambda body: Reply("I  look.", "Hm.", TWO_CALLS, prompt_tokens=123)) as scripted:
        yield scripted


def events_of(data: bytes) -> list[Json]:
    blocks = [block for block in data.decode().split("\n\n") if block]
    events = []
    for block in blocks:
        name, _, text = block.partition("\n")
        event = json.loads(text.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def check_record(trajectory: Trajectory) -> None:
    answer = trajectory.steps[-1].message
    assert (answer.content, answer.reasoning) == ("I  look.", "Hm.")
    assert [call.arguments for call in answer.tool_calls] == [call.arguments for call in TWO_CALLS]
    call = trajectory.steps[-1].call
    assert call is not None and (call.usage.prompt, call.usage.completion) == (123, 7)


def test_messages_streamed(config: Config, provider: ScriptedProvider) -> None:
    tools = [{"name": "bash", "description": "d", "input_schema": SCHEMA}, {"name": "spawn"}]
    with gateway(config, provider.url, CHAT) as recording:
        body = body_of("messages", stream=True, tools=tools, max_tokens=32_000, system="Be brief.")
        status, data, _ = post(f"{recording.url}/v1/messages?beta=true", body)
    assert status == 200
    events = events_of(data)
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert kinds == ["message_start", *block * 4, "message_delta", "message_stop"]
    starts = [event["content_block"]["type"] for event in events if "content_block" in event]
    assert starts == ["thinking", "text", "tool_use", "tool_use"]
    for index in range(4):  # a block is closed before the next one begins
        positions = [number for number, event in enumerate(events) if event.get("index") == index]
        assert positions == list(range(positions[0], positions[-1] + 1))
    pieces = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    arguments = "".join(delta.get("partial_json", "") for delta in pieces)
    assert arguments == TWO_CALLS[0].arguments + TWO_CALLS[1].arguments
    end = events[-2]
    assert end["delta"]["stop_reason"] == "tool_use"
    assert end["usage"]["input_tokens"] == 123 and end["usage"]["output_tokens"] == 7
    sent = provider.requests[-1].json
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert sent["max_tokens"] == 32_000 and sent["stream_options"] == {"include_usage": True}
    assert sent["tools"][0]["function"]["parameters"] == SCHEMA
    (trajectory,) = stored(config)
    check_record(trajectory)
    assert trajectory.header.tools == ("bash", "spawn")


def test_messages_whole_and_continued(config: Config, provider: ScriptedProvider) -> None:
    with gateway(config, provider.url, CHAT) as recording:
        body = body_of("messages", max_tokens=10)
        first = json.loads(post(f"{recording.url}/v1/messages", body)[1])
        assert [block["type"] for block in first["content"]] == ["thinking", "text", "tool_use", "tool_use"]
        assert first["content"][2]["input"] == {"command": "ls"} and first["stop_reason"] == "tool_use"
        used = [block for block in first["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "a.py"}]}
            for block in used
        ]
        results[1]["is_error"] = True
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
        answer = {"role": "assistant", "content": [block for block in first["content"] if "input" in block]}
        body["messages"] += [answer, {"role": "user", "content": [*results, image]}]
        provider.script = lambda body: Reply("All done.")
        post(f"{recording.url}/v1/messages", body)
    sent = provider.requests[-1].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == used[0]["id"]
    assert sent[-1]["content"][0]["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
    (trajectory,) = stored(config)
    kinds = [step.kind.value for step in trajectory.steps]
    assert kinds == ["input", "model", "tool", "tool", "input", "model"]
    assert [step.result.ok for step in trajectory.steps if step.result] == [True, False]


def test_responses_with_the_sdk(config: Config, provider: ScriptedProvider) -> None:
    tools: list[Any] = [
        {"type": "function", "name": "bash", "parameters": SCHEMA, "strict": False},
        {"type": "web_search"},
    ]
    with gateway(config, provider.url, CHAT) as recording:
        client = openai.OpenAI(api_key="sk-0123456789", base_url=f"{recording.url}/v1", max_retries=0)
        with client.responses.stream(
            model="model-1", instructions="Be brief.", input="go", tools=tools
        ) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        whole = client.responses.create(model="model-1", input="go", tools=tools)
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    for response in (final, whole):
        assert [item.type for item in response.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        assert response.output_text == "I  look."
        assert [item.arguments for item in response.output if item.type == "function_call"] == [
            call.arguments for call in TWO_CALLS
        ]
        assert response.usage is not None and response.usage.input_tokens == 123
    assert [tool["function"]["name"] for tool in provider.requests[0].json["tools"]] == ["bash"]
    for trajectory in stored(config):
        check_record(trajectory)


def test_codex_namespaces_and_tools_with_free_text(config: Config, provider: ScriptedProvider) -> None:
    spawn = {"type": "function", "name": "spawn", "parameters": SCHEMA}
    tools = [{"type": "namespace", "name": "agents", "tools": [spawn]}, {"type": "custom", "name": "patch"}]
    calls = (Call("spawn", "{}"), Call("patch", '{"input": "*** Begin"}'))
    provider.script = lambda body: Reply(calls=calls)
    with gateway(config, provider.url, CHAT) as recording:
        body = body_of("responses", tools=tools)
        whole = json.loads(post(f"{recording.url}/v1/responses", body)[1])
        events = events_of(post(f"{recording.url}/v1/responses", {**body, "stream": True})[1])
    for output in (whole["output"], events[-1]["response"]["output"]):
        assert output[0]["namespace"] == "agents" and output[0]["type"] == "function_call"
        assert output[1]["type"] == "custom_tool_call" and output[1]["input"] == "*** Begin"


def test_tokens_arrive_one_by_one(config: Config, provider: ScriptedProvider) -> None:
    """The first word is there while the provider still waits to send the second."""
    gate = threading.Event()
    provider.script = lambda body: Reply("one two", gate=gate, gate_at=2)
    with gateway(config, provider.url, CHAT) as recording:
        data = json.dumps(body_of("messages", stream=True)).encode()
        request = urllib.request.Request(f"{recording.url}/v1/messages", data)
        with urllib.request.urlopen(request) as response:
            while b"one" not in (line := response.readline()):
                assert line
            gate.set()
            assert b"message_stop" in response.read()


def test_counts_and_lists_are_the_providers(config: Config, provider: ScriptedProvider) -> None:
    with gateway(config, provider.url, CHAT) as recording:
        counted = json.loads(post(f"{recording.url}/v1/messages/count_tokens", body_of("messages"))[1])
        request = urllib.request.Request(f"{recording.url}/v1/models", headers={"anthropic-version": "2023"})
        with urllib.request.urlopen(request) as response:
            listed = json.load(response)
    assert counted == {"input_tokens": 123}
    assert listed["data"][0]["id"] == "model-1" and listed["has_more"] is False


def test_a_limit_that_does_not_fit_is_left_to_the_provider(
    config: Config, provider: ScriptedProvider
) -> None:
    refusal = "This model's maximum context length is 8192 tokens; you asked for max_tokens=32000."
    provider.script = lambda body: Reply("fits", status=400 if "max_tokens" in body else 200, error=refusal)
    with gateway(config, provider.url, CHAT) as recording:
        body = body_of("messages", max_tokens=32_000)
        assert post(f"{recording.url}/v1/messages", body)[0] == 200
        provider.script = lambda body: Reply(status=400, error=refusal)
        status, data, _ = post(f"{recording.url}/v1/messages", body)
        assert status == 400 and json.loads(data)["error"]["message"].startswith("prompt is too long")
        status, data, _ = post(f"{recording.url}/v1/responses", body_of("responses"))
        assert json.loads(data)["error"]["message"] == refusal


def test_a_cut_stream_ends_in_the_clients_error(config: Config, provider: ScriptedProvider) -> None:
    provider.script = lambda body: Reply("one two three", cut_after=3)
    with gateway(config, provider.url, CHAT) as recording:
        messages = events_of(post(f"{recording.url}/v1/messages", body_of("messages", stream=True))[1])
        responses = events_of(post(f"{recording.url}/v1/responses", body_of("responses", stream=True))[1])
    assert messages[-1]["type"] == "error" and responses[-1]["type"] == "response.failed"
    for trajectory in stored(config):
        assert trajectory.outcome is not None and trajectory.outcome.error_type == "cut"
        assert trajectory.steps[-1].message.content == "one two "
