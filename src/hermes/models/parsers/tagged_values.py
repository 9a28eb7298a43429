"""Calls that write each argument between tags, unquoted: Qwen3-Coder and GLM.

- `qwen3_coder`: `<tool_call>`, `<function=NAME>`, then per argument `<parameter=KEY>`, the value and
  `</parameter>`, each on lines of their own; `</function>`, `</tool_call>`
- `glm45`: `<tool_call>NAME`, then per argument `<arg_key>KEY</arg_key>` and `<arg_value>VALUE</arg_value>`,
  each on a line of its own; `</tool_call>`
- `glm47`: the same without line breaks

A string is written as it is, anything else as JSON; the tool's schema decides which of the two a value is.
Nothing can be escaped, so a value ends only where its closing tag is followed by what may follow it. A string
that contains exactly that cannot be written in these formats, and `render` raises ValueError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hermes.core import JSON, JSONObject, ToolCall
from hermes.models.parsers.base import MalformedCallError, ParsedText, new_call_id
from hermes.models.parsers.json_scan import decode, skip_space
from hermes.models.parsers.objects import NAME, argument_text, checked_name
from hermes.models.parsers.scan import Grammar, scan


@dataclass(frozen=True, slots=True)
class Tags:
    """How one format writes a call, as patterns to read and as text to write."""

    head: re.Pattern[str]
    """From after `<tool_call>` to the first argument; group 'name'."""
    argument: re.Pattern[str]
    """From the beginning of an argument to its value; group 'key'."""
    value_end: re.Pattern[str]
    """The closing tag of a value, where something that may follow it follows."""
    tail: re.Pattern[str]
    """From after the last argument to the end of the call."""
    nested: re.Pattern[str]
    """The beginning of a call: a value that has one must nest its tags."""
    around_value: re.Pattern[str]
    """The tags before and after a value."""
    closing: str
    frame: str
    """The text on either side of a value that is not part of it."""
    templates: tuple[str, str, str]
    """Head with {name}, argument with {key} and {value}, tail."""
    between: str
    """Between two calls."""


QWEN3_CODER = Tags(
    head=re.compile(rf"\s*<function=(?P<name>{NAME})>\s*"),
    argument=re.compile(r"<parameter=(?P<key>[^<>\n]*)>"),
    value_end=re.compile(r"</parameter>(?=\s*(?:<parameter=[^<>\n]*>|</function>|</tool_call>))"),
    tail=re.compile(r"</function>\s*(?:</tool_call>|\Z|(?=<tool_call>))"),
    nested=re.compile(r"<tool_call>\s*<function="),
    around_value=re.compile(r"<parameter=|</parameter>"),
    closing="</parameter>",
    frame="\n",
    templates=(
        "<tool_call>\n<function={name}>\n",
        "<parameter={key}>\n{value}\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    between="\n",
)


def _glm(line_break: str) -> Tags:
    return Tags(
        head=re.compile(rf"\s*(?P<name>{NAME})\s*(?=<arg_key>|</tool_call>)"),
        argument=re.compile(r"<arg_key>(?P<key>(?:(?!</?arg_key>).)*)</arg_key>\s*<arg_value>", re.DOTALL),
        value_end=re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))"),
        tail=re.compile(r"</tool_call>"),
        nested=re.compile(rf"<tool_call>\s*{NAME}\s*<arg_key>"),
        around_value=re.compile(r"</?arg_value>"),
        closing="</arg_value>",
        frame="",
        templates=(
            f"<tool_call>{{name}}{line_break}",
            f"<arg_key>{{key}}</arg_key>{line_break}<arg_value>{{value}}</arg_value>{line_break}",
            "</tool_call>",
        ),
        between=line_break,
    )


GLM45 = _glm("\n")
GLM47 = _glm("")


@dataclass(frozen=True)
class TaggedValuesParser:
    name: str
    tags: Tags

    @cached_property
    def _grammar(self) -> Grammar:
        return Grammar(opener="<tool_call>", closer="</tool_call>", read=self._read, escapes=False)

    def _read(self, text: str, at: int, tools: Sequence[JSONObject]) -> tuple[list[ToolCall], int]:
        head = self.tags.head.match(text, at)
        if head is None:
            raise MalformedCallError("the call does not begin with a tool's name")
        name, at = head["name"], head.end()
        schemas = parameter_schemas(tools, name)
        arguments: JSONObject = {}
        while not (tail := self.tags.tail.match(text, at)):
            key, value, at = self._read_argument(text, at, name)
            arguments[key] = typed_value(value, schemas.get(key))
        return [ToolCall(new_call_id(), name, json.dumps(arguments, ensure_ascii=False))], tail.end()

    def _read_argument(self, text: str, at: int, name: str) -> tuple[str, str, int]:
        tags = self.tags
        argument = tags.argument.match(text, at)
        if argument is None:
            raise MalformedCallError("expected an argument or the end of the call", name=name)
        key = argument["key"]
        end = tags.value_end.search(text, argument.end())
        value = text[argument.end() : end.start()] if end else ""
        if end is None or self._swallows(value):
            raise MalformedCallError(f"the value of {key!r} does not end", name=name)
        value = value.removeprefix(tags.frame).removesuffix(tags.frame)
        return key, value, skip_space(text, end.end())

    def _swallows(self, value: str) -> bool:
        """True if a missing tag has made the next call part of this value.

        Such a value holds the beginning of a call, and its tags do not nest.
        """
        if not self.tags.nested.search(value):
            return False
        depth = 0
        for tag in self.tags.around_value.finditer(value):
            depth += -1 if tag[0].startswith("</") else 1
            if depth < 0:
                return True
        return depth > 0

    def parse(self, text: str, tools: Sequence[JSONObject] = ()) -> ParsedText:
        return scan(text, self._grammar, tools)

    def render(self, calls: Sequence[ToolCall]) -> str:
        return self.tags.between.join(map(self._render_call, calls))

    def _render_call(self, call: ToolCall) -> str:
        arguments = decode(argument_text(call))
        if call.error or arguments is None or not isinstance(arguments.value, dict):
            raw = call.arguments
            return raw if raw.startswith("<tool_call>") else f"<tool_call>\n{raw}\n</tool_call>"
        head, argument, tail = self.tags.templates
        written = [
            argument.format(key=self._checked_key(key), value=self._format_value(key, value))
            for key, value in arguments.value.items()
        ]
        return head.format(name=checked_name(call)) + "".join(written) + tail

    def _checked_key(self, key: str) -> str:
        argument = self.tags.argument.match(self.tags.templates[1].format(key=key, value=""))
        if argument is None or argument["key"] != key:
            raise ValueError(f"the parameter name {key!r} cannot be written between tags")
        return key

    def _format_value(self, key: str, value: JSON) -> str:
        if isinstance(value, str):
            if not self._representable(value):
                raise ValueError(f"the value of {key!r} contains the tags that would end it")
            return value
        text = json.dumps(value, ensure_ascii=False)
        return text if self._representable(text) else text.replace("<", "\\u003c")

    def _representable(self, value: str) -> bool:
        """True if reading the value back would end where it ends."""
        tags = self.tags
        framed = f"{tags.frame}{value}{tags.frame}"
        end = tags.value_end.search(f"{framed}{tags.closing}</tool_call>")
        return end is not None and end.start() == len(framed) and not self._swallows(value)


_JSON_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def parameter_schemas(tools: Sequence[JSONObject], name: str) -> JSONObject:
    """The parameter schemas of the tool called `name`; empty if it is not among `tools`."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            root = function.get("parameters") or {}
            properties = root.get("properties")
            if isinstance(properties, dict):
                return {key: _resolve(schema, root) for key, schema in properties.items()}
    return {}


def _resolve(schema: JSON, root: JSONObject) -> JSON:
    """The schema itself, or what its '#/…' reference points to."""
    if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
        return schema
    target: JSON = root
    for part in schema["$ref"].removeprefix("#/").split("/"):
        target = target.get(part) if isinstance(target, dict) else None
    return target


def typed_value(text: str, schema: JSON) -> JSON:
    """The value that `text` stands for under its parameter's schema.

    For a string parameter it is the text itself. For any other it is the text parsed as JSON, if that has a
    type the schema allows. A text that fits no type stays text, and the schema check rejects it. Without a
    schema, text that is JSON, but not a JSON string, is that value.
    """
    allowed = _types(schema)
    if allowed == {"string"}:
        return text
    if "boolean" in allowed and text.strip() in ("True", "False"):
        return text.strip() == "True"  # how templates written in Python print a boolean
    decoded = decode(text)
    if decoded is None or (isinstance(decoded.value, str) and (not allowed or "string" in allowed)):
        return text
    if allowed and "string" in allowed and not _type_names(decoded.value) & allowed:
        return text
    return decoded.value


def _types(schema: JSON) -> set[str]:
    """The JSON types that a schema allows; empty if it declares none."""
    if not isinstance(schema, dict):
        return set()
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {kind for kind in declared if isinstance(kind, str)}
    if isinstance(schema.get("enum"), list):
        return set().union(*(_type_names(value) for value in schema["enum"]))
    branches = schema.get("anyOf") or schema.get("oneOf") or []
    branch_types = [_types(branch) for branch in branches] if isinstance(branches, list) else []
    return set().union(*branch_types) if all(branch_types) else set()


def _type_names(value: JSON) -> set[str]:
    """The schema types that describe a value: an integer is also a number."""
    if value is None:
        return {"null"}
    name = next(name for kind, name in _JSON_TYPES if isinstance(value, kind))
    return {name, "number"} if name == "integer" else {name}
