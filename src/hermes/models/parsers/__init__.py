"""Tool calls in plain text: reading what a model wrote, and writing what it would have written."""

from hermes.models.parsers.base import ParsedText, ToolCallParser
from hermes.models.parsers.registry import get_parser, parser_names

__all__ = ["ParsedText", "ToolCallParser", "get_parser", "parser_names"]
