"""The `renderers` package as a second opinion: what we write, it reads as the same calls.

Only ordinary values: where the two differ on purpose, docs/parsers.md says why. `renderers` reads token ids,
so each special mark is one token here and everything else is one token per character.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from hermes.core import ToolCall
from hermes.models.parsers import get_parser

if importlib.util.find_spec("renderers") is None:
    pytest.skip("the package 'renderers' is not installed", allow_module_level=True)

CALLS = (
    ToolCall("functions.search:0", "search", '{"query": "a } \\" b", "limit": 5, "deep": [1, {"x": null}]}'),
    ToolCall("functions.now:1", "now", "{}"),
)
TOOLS = [
    {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]
MARKS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)


class MarkTokenizer:
    """Characters are their code points; marks come after the last code point."""

    unk_token_id = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        pieces = re.split(f"({'|'.join(map(re.escape, MARKS))})", text)
        return [
            token
            for piece in pieces
            for token in ([self.convert_tokens_to_ids(piece)] if piece in MARKS else map(ord, piece))
        ]

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(MARKS[token - 0x110000] if token >= 0x110000 else chr(token) for token in ids)

    def convert_tokens_to_ids(self, token: str) -> int:
        return 0x110000 + MARKS.index(token)


@pytest.fixture(scope="module")
def parsing() -> Iterator[Any]:
    """renderers.parsing without the package's own __init__, which imports a client that needs httpx."""
    spec = importlib.util.find_spec("renderers")
    assert spec is not None and spec.submodule_search_locations is not None
    package = types.ModuleType("renderers")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["renderers"] = package
    yield importlib.import_module("renderers.parsing")
    for name in [name for name in sys.modules if name.split(".")[0] == "renderers"]:
        del sys.modules[name]


def _read(parsing: Any, name: str, text: str) -> Any:
    tokenizer = MarkTokenizer()
    ids, mark = tokenizer.encode(text), tokenizer.convert_tokens_to_ids
    tags: dict[str, Any] = {"tool_call_id": mark("<tool_call>"), "tool_call_end_id": mark("</tool_call>")}
    think: dict[str, Any] = {"think_id": mark("<think>"), "think_end_id": mark("</think>")}
    stop: dict[str, Any] = {"stop_ids": set()}
    if name in ("hermes", "qwen"):
        return parsing.parse_qwen3(tokenizer, ids, **stop, **tags, reasoning_end_id=mark("</think>"))
    if name == "qwen3_coder":
        return parsing.parse_qwen35(tokenizer, ids, **stop, **tags, **think, tools=TOOLS)
    if name in ("glm45", "glm47"):
        arguments = {
            f"arg_{part}{end}_id": mark(f"<{'/' if end else ''}arg_{part}>")
            for part in ("key", "value")
            for end in ("", "_end")
        }
        return parsing.parse_glm(tokenizer, ids, **stop, **tags, **think, **arguments, tools=TOOLS)
    if name == "deepseek_v3":
        marks = ("tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁call▁end", "tool▁sep")
        names = {f"{part.replace('▁', '_')}_id": mark(f"<｜{part}｜>") for part in marks}
        return parsing.parse_deepseek_v3(tokenizer, ids, **stop, **names)
    marks = ("tool_calls_section_begin", "tool_calls_section_end", "tool_call_begin")
    kimi = {
        f"{part}_id": mark(f"<|{part}|>") for part in (*marks, "tool_call_argument_begin", "tool_call_end")
    }
    return parsing.parse_kimi_k2(tokenizer, ids, **stop, **kimi)


@pytest.mark.parametrize(
    "name", ["hermes", "qwen", "qwen3_coder", "glm45", "glm47", "deepseek_v3", "kimi_k2"]
)
@pytest.mark.parametrize("calls", [CALLS, CALLS[:1], CALLS[1:]], ids=["both", "arguments", "no_arguments"])
def test_another_implementation_reads_the_same_calls(
    parsing: Any, name: str, calls: tuple[ToolCall, ...]
) -> None:
    text = f"<think>why</think>Looking.\n{get_parser(name).render(calls)}"
    theirs = _read(parsing, name, text)
    ours = get_parser(name).parse(text, TOOLS)
    expected = [(call.name, call.parsed()) for call in calls]
    assert [(call.name, call.arguments) for call in theirs.tool_calls] == expected
    assert [(call.name, json.loads(call.arguments)) for call in ours.tool_calls] == expected
    assert (theirs.content, theirs.reasoning_content) == (ours.content, ours.reasoning) == ("Looking.", "why")
    assert {call.status.value for call in theirs.tool_calls} == {"ok"}
