"""The deltas of a streamed output add up to the output parsed as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.engine.server.openai.chat import DeltaStreamer, OutputParser, ParsedOutput
from hermes.engine.server.openai.text import StopCondition, stable_prefix
from hermes.models.parsers import get_parser
from tests.engine.http.openai_parts import TOOL

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
PIECES = st.sampled_from(
    ["word", " ", "\n", "a < b", "<", "<th", "<think>", "</think>", "<tool", CALL, "<tool_call>", "{", "日本"]
)


def output_parser(*, tools: bool = True, thinking: bool = False, parser: str = "hermes") -> OutputParser:
    return OutputParser(get_parser(parser), (TOOL,) if tools else (), thinking)


def streamed(parser: OutputParser, text: str, size: int = 1) -> ParsedOutput:
    """The pieces put together, as a client does."""
    deltas = DeltaStreamer(parser)
    pieces = [deltas.push(text[:end]) for end in range(size, len(text) + 1, size)]
    pieces.append(deltas.end(text))
    return ParsedOutput(
        "".join(piece.content for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        pieces[-1].calls,
    )


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "Five.",
        "  spaced  \n",
        f"<think>\nHm.\n</think>\nLet me see.\n{CALL}",
        f"<think>a</think>b<think>c</think>d\n{CALL}\n{CALL}",
        "<think>never closed",
        "a < b and <thinly veiled",
        f"<think>a {CALL} in mind</think> b",
        "tail <tool_cal",
    ],
)
def test_pieces_of_any_size_add_up_to_the_whole(text: str, size: int) -> None:
    parser = output_parser()
    whole, pieces = parser.parse(text), streamed(parser, text, size)
    assert (pieces.content, pieces.reasoning) == (whole.content, whole.reasoning)
    assert [(call.name, call.arguments) for call in pieces.calls] == [
        (call.name, call.arguments) for call in whole.calls
    ]


@given(st.lists(PIECES, max_size=8).map("".join), st.booleans(), st.booleans())
def test_whatever_is_said_no_word_is_lost_in_the_pieces(text: str, tools: bool, thinking: bool) -> None:
    parser = output_parser(tools=tools, thinking=thinking)
    whole, pieces = parser.parse(text), streamed(parser, text)
    assert len(pieces.calls) == len(whole.calls)
    streamed_words = (pieces.content + pieces.reasoning).count("word")
    # A thought that was never opened was told as content before its end showed what it was: then twice.
    assert streamed_words >= (whole.content + whole.reasoning).count("word")
    if "</think>" not in text:
        assert pieces.content.strip() == whole.content.strip()
        assert pieces.reasoning == whole.reasoning


def test_without_tools_a_call_is_only_text() -> None:
    assert output_parser(tools=False).parse(f"Write {CALL}") == ParsedOutput(f"Write {CALL}", "")


def test_thinking_that_the_prompt_opened_is_thinking_from_the_first_word() -> None:
    parser = output_parser(thinking=True)
    deltas = DeltaStreamer(parser)
    assert deltas.push("Hm, I") == ParsedOutput("", "Hm, I")
    assert deltas.end("Hm, I see.</think>\nYes.") == ParsedOutput("Yes.", " see.")
    assert parser.parse("Hm") == ParsedOutput("", "Hm")


def test_a_malformed_call_keeps_its_words() -> None:
    named = output_parser().parse('<tool_call>\n{"name": "add", "arguments": {"a": }}\n</tool_call>')
    (call,) = named.calls
    assert (call.name, named.content) == ("add", "")
    assert '{"a": }' in call.arguments
    nameless = output_parser().parse("Well: <tool_call>nonsense</tool_call>")
    assert nameless == ParsedOutput("Well:\n<tool_call>nonsense</tool_call>", "")


def test_in_another_dialect_with_tools_everything_comes_at_the_end() -> None:
    text = '[TOOL_CALLS][{"name": "add", "arguments": {"a": 2}}]'
    deltas = DeltaStreamer(output_parser(parser="mistral"))
    assert deltas.push(text[:20]) == ParsedOutput("", "")
    assert [call.name for call in deltas.end(text).calls] == ["add"]
    assert DeltaStreamer(output_parser(parser="mistral", tools=False)).push("Hi there") == ParsedOutput(
        "Hi there", ""
    )


def test_what_may_become_a_mark_is_stable_prefix() -> None:
    assert stable_prefix("say STO", ["STOP", "OK"]) == "say "
    assert stable_prefix("say O", ["STOP", "OK"]) == "say "
    assert stable_prefix("say", ["STOP"]) == "say"
    assert StopCondition(("b", "ab"), frozenset()).cut("xaby") == "x"
