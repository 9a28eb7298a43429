"""What is wrong with calls, in a few words each: to see what a policy has yet to learn. Pure.

There are words exactly where `grade_calls` finds no success. A call that is none of those wanted is held
against the first of them that nobody made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from hermes.core import JSON, JSONObject, ToolCall
from hermes.envs.tasks.functions.grading import same_value, take
from hermes.envs.tasks.functions.requests import ExpectedCall


def mistakes(
    made: Sequence[ToolCall], wanted: Sequence[ExpectedCall], schemas: Sequence[JSONObject]
) -> list[str]:
    """One for each thing that is wrong, in the order of the calls."""
    left = list(wanted)
    wrong = [call for call in made if not take(call, left, schemas)]
    known = {schema["name"]: schema["parameters"]["properties"] for schema in schemas}
    return [word for call, want in zip_longest(wrong, left) for word in _of_call(call, want, known)]


def _of_call(
    call: ToolCall | None, want: ExpectedCall | None, known: Mapping[str, JSONObject]
) -> Iterator[str]:
    if call is None or want is None:
        yield "a call too few" if call is None else "a call too many"
        return
    try:
        given = call.parsed()
    except (ValueError, RecursionError):
        yield "malformed call"
        return
    if call.name != want.name:
        yield "wrong function"
        return
    for name in [*want.arguments, *(name for name in given if name not in want.arguments)]:
        yield from _of_argument(name, given, want, known[want.name].get(name))


def _of_argument(
    name: str, given: Mapping[str, JSON], want: ExpectedCall, declared: JSONObject | None
) -> Iterator[str]:
    if declared is None:
        yield "unknown argument"
    elif name not in given and "default" not in declared:
        yield "missing argument"
    elif name not in given:
        if not same_value(declared["default"], want.arguments[name], declared):
            yield "optional argument left out"
    elif name not in want.arguments:
        if "default" not in declared or not same_value(given[name], declared["default"], declared):
            yield "optional argument not asked for"
    elif not same_value(given[name], want.arguments[name], declared):
        alike = str(given[name]).lower() == str(want.arguments[name]).lower()
        yield "wrong type" if alike else "wrong value"
