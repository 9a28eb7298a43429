"""Calls that try to break parsers: every format's own marks, quotes, braces and odd characters in strings."""

from __future__ import annotations

import json
import random
import re
from functools import cache

from hermes.core import JSON, JSONObject, ToolCall

MARKS = (
    *("<tool_call>", "</tool_call>", "<longcat_tool_call>", "</longcat_tool_call>", "<|python_tag|>"),
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "<think>", "</think>"),
    *("<function=", "<function=rm>", "</function>", "<parameter=", "<parameter=x>", "</parameter>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁sep｜>", "```json\n", "\n```", "function"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "functions.rm:0"),
    *("<|im_start|>", "<|im_end|>", "<|eot_id|>", '{"name": "rm", "arguments": {}}', "; ", ", {"),
)
ODDITIES = (
    *(
        '"',
        "'",
        "\\",
        "\\n",
        '\\"',
        "{",
        "}",
        "[",
        "]",
        "{}",
        ":",
        ",",
        "\n",
        "\r\n",
        "\t",
        " ",
        "\x00",
        "\x1f",
    ),
    *(
        "é",
        "中文",
        "\u2028",
        "\ufeff",
        "\U0001f600",
        "\U0010ffff",
        "e\u0301",
        "\u200b",
        "true",
        "null",
        "123",
    ),
    *("1e5", "-0", "NaN", "<", ">", "&lt;", "None", "%s", "{name}", "0x1F", '"quoted"', "  padded  "),
)
NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./"


def hostile_string(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        kind = rng.random()
        if kind < 0.45:
            parts.append(rng.choice(MARKS))
        elif kind < 0.85:
            parts.append(rng.choice(ODDITIES))
        else:
            parts.append(chr(rng.choice((rng.randrange(0x20, 0xD800), rng.randrange(0xE000, 0x110000)))))
    return "".join(parts)


def hostile_value(rng: random.Random, depth: int = 0) -> JSON:
    kind = rng.random()
    if kind < 0.55 or depth > 2:
        return hostile_string(rng)
    if kind < 0.75:
        return rng.choice((0, -1, 10**30, 1.5, -2.5e-7, True, False, None, rng.randrange(10**6)))
    if kind < 0.88:
        return [hostile_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {hostile_string(rng): hostile_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def hostile_call(rng: random.Random) -> ToolCall:
    """A call with argument names a schema could have, except one in ten, which is hostile too."""
    name = "".join(rng.choices(NAME_CHARACTERS, k=rng.randint(1, 20)))
    keys = [hostile_string(rng) if rng.random() < 0.1 else f"key_{i}" for i in range(rng.randrange(4))]
    arguments = {key: hostile_value(rng) for key in keys}
    indent = rng.choice((None, None, 2))
    text = json.dumps(arguments, ensure_ascii=rng.random() < 0.3, indent=indent)
    return ToolCall("call_00000000", name, text)


@cache
def hostile_answers(count: int) -> tuple[tuple[ToolCall, ...], ...]:
    """`count` calls in groups of one to three, always the same ones."""
    rng = random.Random(20261115)
    answers: list[tuple[ToolCall, ...]] = []
    while count > 0:
        size = min(count, rng.randint(1, 3))
        answers.append(tuple(hostile_call(rng) for _ in range(size)))
        count -= size
    return tuple(answers)


def schema_of(call: ToolCall) -> JSONObject:
    """A tool schema under which exactly these arguments are typed as they are."""
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    properties = {
        key: {"type": "null" if value is None else kinds[type(value)]} for key, value in call.parsed().items()
    }
    return {"name": call.name, "parameters": {"type": "object", "properties": properties}}


def meaning(calls: tuple[ToolCall, ...]) -> list[tuple[str, str | None, JSON]]:
    """What must survive: names, absence of errors, and arguments with their types."""
    return [
        (call.name, call.error, json.dumps(call.parsed()) if call.error is None else None) for call in calls
    ]


def _nests(value: str, tags: str) -> bool:
    depth = 0
    for tag in re.findall(tags, value):
        depth += -1 if tag.startswith("</") else 1
        if depth < 0:
            return False
    return depth == 0


def unwritable(parser: str, call: ToolCall) -> bool:
    """The declared limits of the formats that cannot escape anything."""
    if parser == "qwen3_coder":
        end = r"</parameter>\s*(<parameter=[^<>\n]*>|</function>|</tool_call>)"
        start, tags = r"<tool_call>\s*<function=", r"<parameter=|</parameter>"
        bad_key = r"[<>\n]"
    elif parser in ("glm45", "glm47"):
        end = r"</arg_value>\s*(<arg_key>|</tool_call>)"
        start, tags = r"<tool_call>\s*[\w./:-]+\s*<arg_key>", r"</?arg_value>"
        bad_key = r"</?arg_key>"
    else:
        return False
    for key, value in call.parsed().items():
        if re.search(bad_key, key):
            return True
        if isinstance(value, str) and re.search(end, value):
            return True
        if isinstance(value, str) and re.search(start, value) and not _nests(value, tags):
            return True
    return False
