"""The ShareGPT dialect: what goes in can be read back, and nothing is made up."""

from __future__ import annotations

import itertools
import json
import re

from hypothesis import given, settings

from hermes.core import Message, Role, ToolCall
from hermes.data.formats.sharegpt import Roles, conversations
from hermes.models.parsers import get_parser
from tests import records

_RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


@given(messages=records.conversations())
@settings(deadline=None)
def test_every_call_and_thought_is_read_back_by_our_parser(messages: list[Message]) -> None:
    turns = conversations(messages, records.TOOLS)
    spoken = [turn["value"] for turn in turns if turn["from"] == "gpt"]
    said = [message for message in messages if message.role is Role.ASSISTANT]
    assert len(spoken) == len(said)
    for value, message in zip(spoken, said, strict=True):
        if "<" in message.content or "<" in (message.reasoning or ""):
            continue  # text that itself looks like markup has no unambiguous form
        parsed = get_parser("hermes").parse(value)
        assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [
            (call.name, json.loads(call.arguments)) for call in message.tool_calls
        ]
        assert (parsed.reasoning or "").strip() == (message.reasoning or "").strip()
        assert parsed.content.strip() == message.content.strip()


@given(messages=records.conversations())
@settings(deadline=None)
def test_results_are_matched_by_id_and_merged_in_one_turn(messages: list[Message]) -> None:
    turns = conversations(messages, ())
    roles = [turn["from"] for turn in turns]
    assert all(pair != ("tool", "tool") for pair in itertools.pairwise(roles))
    expected = [message for message in messages if message.role is Role.TOOL]
    merged = "\n".join(turn["value"] for turn in turns if turn["from"] == "tool")
    written = sum(message.content.count("<tool_response>") for message in expected)
    assert merged.count("<tool_response>") == len(expected) + written
    for message in expected:
        assert f'"tool_call_id": {json.dumps(message.tool_call_id)}' in merged


def test_the_system_turn_is_what_the_model_saw_and_the_tools_it_had() -> None:
    turns = conversations(records.conversation(), records.TOOLS)
    assert turns[0]["from"] == "system"
    assert turns[0]["value"].startswith("You are helpful.")
    assert "<tools>" in turns[0]["value"]


def test_nothing_is_invented_where_there_was_nothing() -> None:
    turns = conversations([Message.user("hi"), Message.assistant("hello")], ())
    assert turns == [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]


def test_a_malformed_call_is_kept_as_written() -> None:
    broken = ToolCall("call_1", "terminal", '{"command": "ls', error="Unterminated string")
    turns = conversations([Message.user("x"), Message.assistant("", tool_calls=(broken,))], ())
    assert '{"command": "ls' in turns[1]["value"].replace('\\"', '"')


def test_json_results_are_embedded_as_json() -> None:
    call = ToolCall("call_1", "terminal", "{}")
    turns = conversations([Message.tool(call, '{"exit_code": 0}'), Message.tool(call, "plain")], ())
    bodies = [json.loads(body) for body in _RESPONSE.findall(turns[0]["value"])]
    assert [body["content"] for body in bodies] == [{"exit_code": 0}, "plain"]
    assert bodies[0]["name"] == "terminal"


def test_roles_can_be_renamed() -> None:
    turns = conversations(records.conversation(), (), Roles.USER_ASSISTANT)
    assert [turn["from"] for turn in turns] == ["system", "user", "assistant", "tool", "assistant"]
