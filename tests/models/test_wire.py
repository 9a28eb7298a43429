from __future__ import annotations

import json

import pytest

from hermes.core import JSONObject, Message, Role, Sampling, ToolCall
from hermes.models.base import ChatRequest
from hermes.models.remote.wire import (
    Dialect,
    chat_body,
    dialect_for,
    message_from_wire,
    message_to_wire,
    sampling_to_wire,
    with_extra_body,
)
from tests.models.clients import TOOL

PLAIN = Dialect()


def wire_call(arguments: object, name: str = "todo", call_id: str = "c1") -> JSONObject:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_whole_conversation_becomes_the_wire_form() -> None:
    call = ToolCall("c1", "todo", '{"a":  1}')
    request = ChatRequest(
        (
            Message.system("be brief"),
            Message.user("do it"),
            Message.assistant("", reasoning="hm", tool_calls=(call,)),
            Message.tool(call, "done"),
        ),
        tools=(TOOL,),
        sampling=Sampling(temperature=0.0, max_tokens=9, stop=("X",)),
    )
    assert chat_body("m", request, PLAIN) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "do it"},
            {"role": "assistant", "content": None, "tool_calls": [wire_call('{"a":  1}')]},
            {"role": "tool", "content": "done", "tool_call_id": "c1"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "temperature": 0.0,
        "max_tokens": 9,
        "stop": ("X",),
    }


def test_reasoning_is_sent_back_only_where_the_provider_wants_it() -> None:
    message = Message.assistant("yes", reasoning="because")
    assert "reasoning_content" not in message_to_wire(message, PLAIN)
    assert message_to_wire(message, Dialect(send_reasoning=True))["reasoning_content"] == "because"


def test_images_become_content_parts_after_the_text() -> None:
    message = Message(Role.USER, "what is this?", images=("data:image/png;base64,AA",))
    assert message_to_wire(message, PLAIN)["content"] == [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
    ]


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "plain words", '"x"'])
def test_arguments_that_are_no_object_go_back_to_the_server_wrapped_in_one(arguments: str) -> None:
    calls = message_from_wire({"content": None, "tool_calls": [wire_call(arguments)]}).message.tool_calls
    sent = message_to_wire(Message.assistant(tool_calls=calls), PLAIN)["tool_calls"][0]["function"]
    assert json.loads(sent["arguments"]) == {"unparsed": arguments}


def test_blank_arguments_mean_no_arguments_and_are_sent_as_an_empty_object() -> None:
    read = message_from_wire({"tool_calls": [wire_call("")]}).message
    assert read.tool_calls == (ToolCall("c1", "todo", ""),)
    assert message_to_wire(read, PLAIN)["tool_calls"][0]["function"]["arguments"] == "{}"


def test_openai_itself_gets_its_own_name_for_the_completion_limit() -> None:
    sampling = Sampling(max_tokens=5)
    assert sampling_to_wire(sampling, dialect_for("https://api.openai.com/v1")) == {
        "max_completion_tokens": 5
    }
    assert sampling_to_wire(sampling, dialect_for("http://127.0.0.1:8000/v1")) == {"max_tokens": 5}


def test_reasoning_effort_is_nested_for_openrouter() -> None:
    sampling = Sampling(reasoning_effort="high")
    nested = sampling_to_wire(sampling, dialect_for("https://openrouter.ai/api/v1"))
    assert nested == {"reasoning": {"effort": "high"}}
    assert sampling_to_wire(sampling, PLAIN) == {"reasoning_effort": "high"}


def test_extra_fields_of_the_call_win_over_those_of_the_provider_and_both_are_recorded() -> None:
    sampling = with_extra_body(Sampling(top_k=3, extra_body={"a": 1}), {"a": 0, "b": 2})
    assert sampling.extra_body == {"a": 1, "b": 2}
    assert sampling_to_wire(sampling, PLAIN) == {"top_k": 3, "a": 1, "b": 2}
    assert with_extra_body(Sampling(), {}) == Sampling()


def test_argument_text_is_kept_verbatim() -> None:
    text = '{ "b":1,\n "a" : "\\u00e9" }'
    read = message_from_wire({"content": "ok", "tool_calls": [wire_call(text)]})
    assert read.message == Message.assistant("ok", tool_calls=(ToolCall("c1", "todo", text),))
    assert read.parser is None


def test_a_malformed_call_is_marked_and_its_neighbours_are_untouched() -> None:
    calls = [wire_call('{"a":1}', call_id="x"), wire_call('{"a":', call_id="y"), wire_call("{}", call_id="z")]
    first, bad, last = message_from_wire({"tool_calls": calls}).message.tool_calls
    assert first == ToolCall("x", "todo", '{"a":1}')
    assert last == ToolCall("z", "todo", "{}")
    assert bad.arguments == '{"a":'
    assert bad.error is not None and "not a JSON object" in bad.error


def test_arguments_nested_beyond_reason_are_an_error_of_that_call() -> None:
    deep = '{"a":' * 100_000
    (call,) = message_from_wire({"tool_calls": [wire_call(deep)]}).message.tool_calls
    assert call.arguments == deep
    assert call.error == "the arguments are nested too deeply"


def test_a_call_without_a_name_is_an_error_of_that_call() -> None:
    (call,) = message_from_wire(
        {"tool_calls": [{"id": "c", "function": {"arguments": "{}"}}]}
    ).message.tool_calls
    assert call.error == "the call names no tool"
    assert message_to_wire(Message.assistant(tool_calls=(call,)), PLAIN)["tool_calls"][0]["function"]["name"]


def test_missing_and_repeated_call_ids_are_made_unique() -> None:
    calls = [wire_call("{}"), wire_call("{}"), {"function": {"name": "todo", "arguments": {"a": 1}}}]
    read = message_from_wire({"tool_calls": calls}).message.tool_calls
    assert read[0].id == "c1"
    assert len({call.id for call in read}) == 3
    assert read[2].parsed() == {"a": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "h"},
                {"type": "reasoning.text", "text": "m"},
            ]
        },
        {
            "reasoning_details": [
                {"type": "reasoning.summary", "summary": "hm"},
                {"type": "reasoning.encrypted"},
            ]
        },
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
        {"content": [{"type": "thinking", "thinking": "hm"}]},
    ],
)
def test_thinking_is_found_under_every_name_servers_give_it(fields: JSONObject) -> None:
    assert message_from_wire({"content": "", **fields}).message.reasoning == "hm"


def test_no_thinking_is_none_and_not_empty_text() -> None:
    assert message_from_wire({"content": "hi", "reasoning_content": ""}).message.reasoning is None


def test_content_in_parts_is_joined_and_a_refusal_is_what_the_model_said() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message_from_wire({"content": parts}).message.content == "ab"
    assert message_from_wire({"content": None, "refusal": "no"}).message.content == "no"


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"content": 5, "tool_calls": "x", "reasoning": 1, "reasoning_details": {}},
        {"tool_calls": [None, 3, {"function": None}]},
        {"content": [None, {"type": "text", "text": 4}], "reasoning_details": [None]},
    ],
)
def test_a_message_of_the_wrong_shape_is_read_without_crashing(nonsense: JSONObject) -> None:
    message = message_from_wire(nonsense).message
    assert message.content == "" and message.reasoning is None
    assert all(call.error for call in message.tool_calls)
