"""Tool calls in plain text: reading what a model wrote, and writing what it would have written."""

from __future__ import annotations

from collections.abc import Callable

from hermes.core.names import did_you_mean, nearest
from hermes.errors import UsageError
from hermes.models.parsers.base import ParsedText, ToolCallParser
from hermes.models.parsers.hermes import TaggedJSONParser
from hermes.models.parsers.llama import LlamaParser
from hermes.models.parsers.marked import DEEPSEEK_V3, DEEPSEEK_V3_1, KIMI_K2, MarkedParser
from hermes.models.parsers.mistral import MistralParser
from hermes.models.parsers.tagged_values import GLM45, GLM47, QWEN3_CODER, TaggedValuesParser

__all__ = ["ParsedText", "ToolCallParser", "get_parser", "parser_names"]


_PARSERS: dict[str, Callable[[str], ToolCallParser]] = {
    "hermes": lambda name: TaggedJSONParser(name, "tool_call"),
    "qwen": lambda name: TaggedJSONParser(name, "tool_call"),
    "longcat": lambda name: TaggedJSONParser(name, "longcat_tool_call"),
    "llama3_json": LlamaParser,
    "llama4_json": LlamaParser,
    "mistral": lambda name: MistralParser(name, array=True),
    "mistral_v11": lambda name: MistralParser(name, array=False),
    "deepseek_v3": lambda name: MarkedParser(name, DEEPSEEK_V3),
    "deepseek_v3_1": lambda name: MarkedParser(name, DEEPSEEK_V3_1),
    "kimi_k2": lambda name: MarkedParser(name, KIMI_K2),
    "qwen3_coder": lambda name: TaggedValuesParser(name, QWEN3_CODER),
    "glm45": lambda name: TaggedValuesParser(name, GLM45),
    "glm47": lambda name: TaggedValuesParser(name, GLM47),
}
_ALIASES = {"deepseek_v31": "deepseek_v3_1"}


def parser_names() -> tuple[str, ...]:
    """Every name that `get_parser` accepts, aliases included."""
    return tuple(sorted({**_PARSERS, **_ALIASES}))


def get_parser(name: str) -> ToolCallParser:
    """The parser called `name`."""
    key = _ALIASES.get(name, name)
    if key not in _PARSERS:
        names = parser_names()
        hint = did_you_mean(nearest(name, names), f"Parsers: {', '.join(names)}.")
        raise UsageError(f"no tool-call parser is called '{name}'.", hint)
    return _PARSERS[key](key)
