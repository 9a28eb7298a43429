"""Schemas of actions become tools, and observations become text."""

from __future__ import annotations

import pytest

from hermes.envs.openenv.actions import mcp_tools, names_its_tools, observation_text, schema_tools
from hermes.envs.openenv.wire import server_urls
from hermes.errors import ConfigError, ToolError

MOVE = {
    "title": "MoveAction",
    "type": "object",
    "description": "Moves.",
    "properties": {
        "metadata": {"type": "object"},
        "kind": {"const": "move"},
        "where": {"$ref": "#/$defs/Where"},
    },
    "required": ["kind", "where"],
}
WHERE = {"enum": ["left", "right"]}


def test_an_action_is_a_tool_without_the_fields_that_are_not_the_models() -> None:
    (tool,) = schema_tools({**MOVE, "$defs": {"Where": WHERE}})
    assert (tool.name, tool.description) == ("move", "Moves.")
    assert tool.parameters["properties"] == {"where": {"$ref": "#/$defs/Where"}}
    assert tool.parameters["required"] == ["where"]
    assert tool.parameters["$defs"] == {"Where": WHERE}
    assert tool.action({"where": "left"}) == {"kind": "move", "where": "left"}


def test_each_kind_of_action_is_a_tool() -> None:
    look = {"title": "LookAroundAction", "type": "object", "properties": {"kind": {"const": "look"}}}
    schema = {
        "oneOf": [{"$ref": "#/$defs/MoveAction"}, {"$ref": "#/$defs/LookAroundAction"}],
        "$defs": {"MoveAction": MOVE, "LookAroundAction": look, "Where": WHERE},
    }
    assert not names_its_tools(schema)
    move, look_around = schema_tools(schema)
    assert (move.name, look_around.name) == ("move", "look_around")
    assert look_around.action({}) == {"kind": "look"}


def test_an_mcp_environment_names_its_tools() -> None:
    fields = {"type": {"const": "call_tool"}, "tool_name": {}, "arguments": {}, "metadata": {}}
    assert names_its_tools({"properties": fields})
    assert names_its_tools({"properties": {"metadata": {}}})
    assert not names_its_tools({"properties": {"code": {"type": "string"}}})
    (tool,) = mcp_tools([{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}])
    assert tool.action({"a": 1}) == {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}
    with pytest.raises(ConfigError, match="'add' has a schema that is not valid"):
        mcp_tools([{"name": "add", "input_schema": {"type": "thing"}}])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"message": "hello", "metadata": {}}, "hello"),
        ({"board": [0, 1], "note": "a\nb", "reward": 1, "left": None}, "board: [0, 1]\nnote:\na\nb"),
        ({"tool_name": "t", "result": {"content": [{"type": "text", "text": "4"}], "data": 4}}, "4"),
        ({"tool_name": "t", "result": {"a": 1}, "error": None}, '{"a": 1}'),
        ({}, ""),
    ],
)
def test_an_observation_is_text(data: dict[str, object], text: str) -> None:
    assert observation_text(data) == text


@pytest.mark.parametrize(
    "data",
    [
        {"tool_name": "t", "error": {"error_type": "timeout", "message": "too slow"}},
        {"tool_name": "t", "result": {"content": [{"text": "too slow"}], "is_error": True}},
    ],
)
def test_a_tool_that_failed_is_an_error(data: dict[str, object]) -> None:
    with pytest.raises(ToolError, match="too slow"):
        observation_text(data)


def test_addresses() -> None:
    assert server_urls("ws://h:1/x/") == ("http://h:1/x", "ws://h:1/x/ws")
    assert server_urls("https://h/ws") == ("https://h", "wss://h/ws")
    for url in ("h:1", "ftp://h", "ws://"):
        with pytest.raises(ConfigError):
            server_urls(url)
