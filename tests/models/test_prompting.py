"""Tools as text: what the model is shown is what the parser reads."""

from __future__ import annotations

import json
import re

import pytest

from hermes.core import JSONObject, Message, Role, ToolCall
from hermes.models.parsers import get_parser
from hermes.models.render.prompting import assistant_text, tool_response_text, tool_system_text, with_tools
from tests.models.parsers.hostile import hostile_answers, meaning

HERMES = get_parser("hermes")
WEATHER: JSONObject = {
    "name": "weather",
    "description": 'Says "hot" or "cold"; 50 % right {really}.',
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOCK: JSONObject = {
    "name": "clock",
    "description": "The time.",
    "parameters": {"type": "object", "properties": {}},
}
CALL = ToolCall("call_1", "weather", '{"city": "Zürich"}')
OTHER = ToolCall("call_2", "clock", "{}")


def test_the_call_form_shown_is_read_by_the_parser() -> None:
    text = tool_system_text([WEATHER])
    shown = re.findall(r"<tool_call>\n.*?\n</tool_call>", text, re.DOTALL)
    assert len(shown) == 1
    (call,) = HERMES.parse(shown[0]).tool_calls
    assert (call.error, call.name, call.parsed()) == (None, "tool_name", {"parameter": "value"})


def test_each_schema_is_one_line_of_json() -> None:
    lines = tool_system_text([WEATHER, CLOCK]).splitlines()
    inside = lines[lines.index("<tools>") + 1 : lines.index("</tools>")]
    assert [json.loads(line) for line in inside] == [WEATHER, CLOCK]


@pytest.mark.parametrize(
    ("content", "embedded"),
    [
        ('{"ok": true}', {"ok": True}),
        (" [1, 2] ", [1, 2]),
        ("21 degrees", "21 degrees"),
        ("12", "12"),
        ('"quoted"', '"quoted"'),
        ("{broken", "{broken"),
        ("</tool_response>\n<tool_call>", "</tool_response>\n<tool_call>"),
        ("[" * 100_000, "[" * 100_000),
        ("", ""),
    ],
)
def test_a_result_is_json_with_its_id_and_name(content: str, embedded: object) -> None:
    text = tool_response_text("call_1", "weather", content)
    assert text.startswith("<tool_response>\n{") and text.endswith("}\n</tool_response>")
    body = json.loads(text.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))
    assert body == {"tool_call_id": "call_1", "name": "weather", "content": embedded}


def test_tools_join_the_system_message_that_is_there() -> None:
    system, user = with_tools([Message.system("Be brief."), Message.user("Hi")], [WEATHER], HERMES)
    assert system == Message.system(f"Be brief.\n\n{tool_system_text([WEATHER])}")
    assert user == Message.user("Hi")


def test_without_a_system_message_the_tools_make_one() -> None:
    messages = with_tools([Message.user("Hi")], [WEATHER], HERMES)
    assert messages == (Message.system(tool_system_text([WEATHER])), Message.user("Hi"))


def test_without_tools_nothing_is_added() -> None:
    messages = (Message.system("Be brief."), Message.user("Hi"), Message.assistant("Hello"))
    assert with_tools(messages, [], HERMES) == messages
    assert with_tools([], [], HERMES) == ()


@pytest.mark.parametrize("role", [Role.USER, Role.TOOL])
def test_calls_become_text_and_results_of_one_turn_share_a_turn(role: Role) -> None:
    messages = [
        Message.user("Weather and time?"),
        Message.assistant("Looking.", reasoning="Two tools.", tool_calls=(CALL, OTHER)),
        Message.tool(CALL, "21 degrees"),
        Message.tool(OTHER, '{"time": "12:00"}'),
        Message.assistant("21 degrees at noon."),
    ]
    _, asked, called, results, told = with_tools(messages, [WEATHER, CLOCK], HERMES, role)
    assert (asked, told) == (messages[0], messages[4])
    assert called.tool_calls == () and called.reasoning is None
    parsed = HERMES.parse(called.content)
    assert (parsed.content, parsed.reasoning) == ("Looking.", "Two tools.")
    assert meaning(parsed.tool_calls) == meaning((CALL, OTHER))
    one = tool_response_text("call_1", "weather", "21 degrees")
    two = tool_response_text("call_2", "clock", '{"time": "12:00"}')
    assert results == Message(role, f"{one}\n{two}")


def test_a_malformed_call_is_told_as_the_model_wrote_it() -> None:
    written = '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call>'
    parsed = HERMES.parse(f"Let me see.\n{written}")
    assert assistant_text(Message.assistant("Let me see.", tool_calls=parsed.tool_calls), HERMES) == (
        f"Let me see.\n{written}"
    )


def test_what_an_assistant_said_is_read_back_the_same() -> None:
    for calls in hostile_answers(300):
        text = assistant_text(Message.assistant("Text.", reasoning="Because.", tool_calls=calls), HERMES)
        parsed = HERMES.parse(text)
        assert (parsed.content, parsed.reasoning) == ("Text.", "Because.")
        assert meaning(parsed.tool_calls) == meaning(calls)
