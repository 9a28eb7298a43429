"""The actions of an OpenEnv environment as tools, and its observations as text. Pure.

An MCP environment names its tools. Any other has one schema of actions: it becomes one tool, or one for each
kind of action. Fields that can have one value only, and `metadata`, are not the model's to fill in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes.core import JSON, JSONObject
from hermes.errors import ConfigError, ToolError
from hermes.safety.json_schema import schema_fault

_NO_ARGUMENTS: JSONObject = {"type": "object", "properties": {}}
_HIDDEN = frozenset(("metadata", "done", "reward"))


@dataclass(frozen=True, slots=True)
class ActionTool:
    """A tool, and how a call of it is written as an action."""

    name: str
    description: str
    parameters: JSONObject
    is_mcp: bool = False
    fixed: Mapping[str, JSON] = field(default_factory=dict)
    """Fields of the action that have one possible value."""

    def action(self, arguments: JSONObject) -> JSONObject:
        if self.is_mcp:
            return {"type": "call_tool", "tool_name": self.name, "arguments": arguments}
        return {**self.fixed, **arguments}


def names_its_tools(schema: JSONObject) -> bool:
    """Whether the schema of actions is that of MCP environments, whose tools have to be listed."""
    names = set(schema.get("properties") or {}) - {"metadata", "type"}
    return not _variants(schema) and names in (set(), {"tool_name", "arguments"})


def mcp_tools(listing: Sequence[Any]) -> list[ActionTool]:
    """The tools as an MCP environment lists them."""
    return [
        _checked(
            ActionTool(
                str(entry["name"]),
                str(entry.get("description") or entry["name"]),
                entry.get("input_schema") or entry.get("inputSchema") or _NO_ARGUMENTS,
                is_mcp=True,
            )
        )
        for entry in listing
    ]


def schema_tools(schema: JSONObject) -> list[ActionTool]:
    """The tools that stand for the actions of a schema."""
    definitions = schema.get("$defs") or {}
    variants = _variants(schema)
    return [_checked(_schema_tool(variant, definitions)) for variant in variants or [schema]]


def _variants(schema: JSONObject) -> list[JSONObject]:
    """The schemas of which an action matches one; none: there is one kind of action."""
    definitions = schema.get("$defs") or {}
    options = schema.get("oneOf") or schema.get("anyOf") or ()
    return [definitions.get(str(option.get("$ref", "")).rpartition("/")[2], option) for option in options]


def _schema_tool(schema: JSONObject, definitions: JSONObject) -> ActionTool:
    fields: dict[str, JSONObject] = dict(schema.get("properties") or {})
    fields.pop("metadata", None)
    fixed = {name: part["const"] for name, part in fields.items() if "const" in part}
    parameters = {
        **schema,
        "type": "object",
        "properties": {name: part for name, part in fields.items() if name not in fixed},
        "required": [name for name in schema.get("required") or () if name not in (*fixed, "metadata")],
        **({"$defs": definitions} if definitions else {}),
    }
    title = re.sub(r"Action$", "", str(schema.get("title") or "")) or "step"
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\W+", "_", title).strip("_").lower()[:64]
    text = str(schema.get("description") or "").strip() or "Acts in the environment."
    return ActionTool(name or "step", text, parameters, fixed=fixed)


def _checked(tool: ActionTool) -> ActionTool:
    if (fault := schema_fault(tool.parameters)) is not None:
        raise ConfigError(f"the environment's tool '{tool.name}' has a schema that is not valid: {fault}")
    return tool


def observation_text(data: JSONObject) -> str:
    """The text that the model reads. ToolError: an MCP tool has failed."""
    if "tool_name" in data and {"result", "error"} & set(data):
        if error := data.get("error"):
            raise ToolError(str(error.get("message", error)) if isinstance(error, dict) else str(error))
        return _mcp_text(data.get("result"))
    parts = {name: value for name, value in data.items() if name not in _HIDDEN and value not in (None, "")}
    if len(parts) == 1 and isinstance(text := next(iter(parts.values())), str):
        return text
    return "\n".join(_line(name, value) for name, value in parts.items())


def _line(name: str, value: JSON) -> str:
    if not isinstance(value, str):
        return f"{name}: {json.dumps(value, ensure_ascii=False)}"
    return f"{name}:\n{value}" if "\n" in value else f"{name}: {value}"


def _mcp_text(result: Any) -> str:
    """The text of a tool's result; ToolError if the tool says that it has failed."""
    text = result
    if isinstance(result, dict) and isinstance(blocks := result.get("content"), list):
        texts = [str(block["text"]) for block in blocks if isinstance(block, dict) and "text" in block]
        text = "\n".join(texts) if texts else result.get("data")
        if result.get("is_error") or result.get("isError"):
            raise ToolError(str(text))
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
