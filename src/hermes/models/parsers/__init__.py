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


_PARSERS: dict[str, Callable[[str, bool], ToolCallParser]] = {
    "hermes": lambda name, repair: TaggedJSONParser(name, "tool_call", repair),
    "qwen": lambda name, repair: TaggedJSONParser(name, "tool_call", repair),
    "longcat": lambda name, repair: TaggedJSONParser(name, "longcat_tool_call", repair),
    "llama3_json": LlamaParser,
    "llama4_json": LlamaParser,
    "mistral": lambda name, repair: MistralParser(name, array=True, repair=repair),
    "mistral_v11": lambda name, repair: MistralParser(name, array=False, repair=repair),
    "deepseek_v3": lambda name, repair: MarkedParser(name, DEEPSEEK_V3, repair),
    "deepseek_v3_1": lambda name, repair: MarkedParser(name, DEEPSEEK_V3_1, repair),
    "kimi_k2": lambda name, repair: MarkedParser(name, KIMI_K2, repair),
    "qwen3_coder": lambda name, repair: TaggedValuesParser(name, QWEN3_CODER),
    "glm45": lambda name, repair: TaggedValuesParser(name, GLM45),
    "glm47": lambda name, repair: TaggedValuesParser(name, GLM47),
}
_ALIASES = {"deepseek_v31": "deepseek_v3_1"}


def parser_names() -> tuple[str, ...]:
    """Every name that `get_parser` accepts, aliases included."""
    return tuple(sorted({**_PARSERS, **_ALIASES}))


def get_parser(name: str, *, repair: bool = False) -> ToolCallParser:
    """The parser called `name`.

    With `repair`, malformed JSON of a call that is not cut off is repaired where possible, and the call is
    marked `repaired`. Formats without JSON around their values have nothing to repair.
    """
    key = _ALIASES.get(name, name)
    if key not in _PARSERS:
        names = parser_names()
        hint = did_you_mean(nearest(name, names), f"Parsers: {', '.join(names)}.")
        raise UsageError(f"no tool-call parser is called '{name}'.", hint)
    return _PARSERS[key](key, repair)
