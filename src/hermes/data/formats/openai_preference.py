"""OpenAI's preference rows (its hosted DPO, also Together and Fireworks): one assistant message on each side.

A pair whose better or worse turn is more than one message (it called tools) is left out: the service has no
form for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hermes.core import JSONObject, Message
from hermes.data.example import UnfitError
from hermes.data.formats.base import Column, Format, ToolCallStyle, Unit
from hermes.data.formats.messages import strict_message, strict_tools
from hermes.data.preference.pairs import PreferencePair


def write(pair: PreferencePair, calls: ToolCallStyle) -> Iterator[JSONObject]:
    prompt: JSONObject = {"messages": [strict_message(message) for message in pair.prompt]}
    if pair.tools:
        prompt |= {"tools": strict_tools(pair.tools), "parallel_tool_calls": True}
    yield {
        "input": prompt,
        "preferred_output": _single_message(pair.chosen),
        "non_preferred_output": _single_message(pair.rejected),
    }


def _single_message(turn: Sequence[Message]) -> list[JSONObject]:
    if len(turn) != 1:
        raise UnfitError("a turn of more than one message")
    return [strict_message(turn[0])]


FORMAT = Format(
    name="openai-preference",
    version=1,
    summary="OpenAI's preference rows: input, preferred_output, non_preferred_output",
    columns=(
        Column("input", "json", "the shared messages and tools"),
        Column("preferred_output", "json", "the better message"),
        Column("non_preferred_output", "json", "the worse message"),
    ),
    write=write,
    unit=Unit.PAIR,
    keeps=("role, content, calls and results of the shared prefix", "both answers", "tool schemas"),
    loses=("thinking, trajectory ids, the origin of the preference", "pairs with turns of several messages"),
)
