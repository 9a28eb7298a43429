"""Compares the calls a model made with the calls that a request expects, argument by argument. Pure.

The order of the calls does not matter, their number does: a call too many is as wrong as a call too few.
Types are those of the schema: "3" is not 3, true is not 1, 3.0 is the integer 3. Strings are compared without
regard to case and spacing unless the schema lists the allowed values. A parameter with a default may be left
out or set to that default; a parameter that the schema does not declare makes the call wrong.

`grade_calls` gives the reward, and `mistakes` describes what is wrong, for the logs: it returns an empty list
exactly where `grade_calls` reports success.

Steps of an answer can have credit of their own. An answer is cut into segments of tokens: for each call its
opening and the call itself, and then the end. Opening a call is right while fewer calls were made than are
expected. Ending is right when as many were made. A call is right if it matches an expected call that was not
matched before, and is not a call too many. So whether to go on is learned separately from whether the calls
are right: otherwise the way to make no mistake would be to stop after the first call. A finished answer is
right exactly if all its segments are.

A segment is compared with the segments at the same position in the other answers of its group.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, permutations, zip_longest

from hermes.batch.grading.answers import plain
from hermes.core import JSON, JSONObject, ToolCall
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.envs.tasks.functions.requests import ExpectedCall

_MAX_MATCHED_CALLS = 6
"""Calls beyond these are only counted: their number alone makes the answer wrong."""


@dataclass(frozen=True, slots=True)
class _Fit:
    """How well a call matches an expected call."""

    name: float
    arguments: float
    """Share of the arguments that are right; 1 exactly if all are right and there are no extra ones."""

    @property
    def credit(self) -> float:
        return 0.4 * self.name + 0.6 * self.arguments


_NO_FIT = _Fit(0.0, 0.0)


def grade_calls(
    calls: Sequence[ToolCall],
    expected: Sequence[ExpectedCall],
    schemas: Sequence[JSONObject],
    *,
    shaped: bool = False,
) -> RewardResult:
    """1 if the calls are the expected ones; with `shaped`, partial credit for right names and arguments.

    Parts: `names` and `arguments` (shares over all calls) and `success`, the strict verdict.
    """
    parameters = _parameters(schemas)
    if missing := [call.name for call in expected if call.name not in parameters]:
        raise GraderError(f"the expected calls name functions that are not on offer: {', '.join(missing)}")
    if not expected:
        value = float(not calls)
        return RewardResult(value, {"names": value, "arguments": value, "success": value})
    fits = _best_assignment(calls[:_MAX_MATCHED_CALLS], expected, parameters)
    most = max(len(calls), len(expected))
    names, arguments = (sum(getattr(fit, part) for fit in fits) / most for part in ("name", "arguments"))
    success = float(arguments == 1.0)
    credit = sum(fit.credit for fit in fits) / most
    parts = {"names": names, "arguments": arguments, "success": success}
    return RewardResult((1.0 if success else credit) if shaped else success, parts)


def remove_match(call: ToolCall, remaining: list[ExpectedCall], schemas: Sequence[JSONObject]) -> bool:
    """True if the call matches one of the remaining expected calls, which is then removed from the list."""
    parameters = _parameters(schemas)
    for index, expected in enumerate(remaining):
        if expected.name in parameters and _fit(call, expected, parameters).arguments == 1.0:
            del remaining[index]
            return True
    return False


def mistakes(
    calls: Sequence[ToolCall], expected: Sequence[ExpectedCall], schemas: Sequence[JSONObject]
) -> list[str]:
    """A short description of each mistake, in the order of the calls.

    A call that matches none of the expected ones is compared with the first that is left unmatched.
    """
    remaining = list(expected)
    unmatched = [call for call in calls if not remove_match(call, remaining, schemas)]
    properties = {name: declared["properties"] for name, declared in _parameters(schemas).items()}
    return [
        description
        for call, missing in zip_longest(unmatched, remaining)
        for description in _call_mistakes(call, missing, properties)
    ]


def _parameters(schemas: Sequence[JSONObject]) -> dict[str, JSONObject]:
    return {schema["name"]: schema["parameters"] for schema in schemas}


def _best_assignment(
    calls: Sequence[ToolCall], expected: Sequence[ExpectedCall], parameters: Mapping[str, JSONObject]
) -> Sequence[_Fit]:
    """The fit of each expected call, under the assignment of calls that earns most."""
    table = [[_fit(call, expected_call, parameters) for call in calls] for expected_call in expected]
    padded = [*range(len(calls)), *[None] * len(expected)]
    assignments = (
        [_NO_FIT if column is None else row[column] for row, column in zip(table, order, strict=True)]
        for order in set(permutations(padded, len(expected)))
    )
    return max(assignments, key=lambda fits: sum(fit.credit for fit in fits))


def _fit(call: ToolCall, expected: ExpectedCall, parameters: Mapping[str, JSONObject]) -> _Fit:
    if call.name != expected.name:
        return _NO_FIT
    try:
        arguments = call.parsed()
    except (ValueError, RecursionError):
        return _NO_FIT
    properties: JSONObject = parameters[expected.name]["properties"]
    defaults = {name: spec["default"] for name, spec in properties.items() if "default" in spec}
    expected_values, actual_values = defaults | expected.arguments, defaults | arguments
    compared = expected.arguments.keys() | arguments.keys()
    right = sum(
        name in expected_values
        and name in actual_values
        and _same_argument(actual_values[name], expected_values[name], properties[name])
        for name in compared
    )
    return _Fit(1.0, right / len(compared) if compared else 1.0)


def _same_argument(actual: JSON, expected: JSON, spec: JSONObject) -> bool:
    """Whether an argument has the expected value; `spec` is its declaration in the schema."""
    match spec["type"]:
        case "boolean":
            return isinstance(actual, bool) and actual == expected
        case "integer" | "number":
            return _is_number(actual) and bool(actual == expected)
        case "array":
            return (
                isinstance(actual, list)
                and len(actual) == len(expected)
                and all(
                    _same_argument(left, right, spec["items"])
                    for left, right in zip(actual, expected, strict=True)
                )
            )
        case _ if "enum" in spec:
            return bool(actual == expected)
        case _:
            return isinstance(actual, str) and plain(actual) == plain(expected)


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _call_mistakes(
    call: ToolCall | None, expected: ExpectedCall | None, properties: Mapping[str, JSONObject]
) -> Iterator[str]:
    if call is None or expected is None:
        yield "a call too few" if call is None else "a call too many"
        return
    try:
        arguments = call.parsed()
    except (ValueError, RecursionError):
        yield "malformed call"
        return
    if call.name != expected.name:
        yield "wrong function"
        return
    for name in [*expected.arguments, *(name for name in arguments if name not in expected.arguments)]:
        yield from _argument_mistakes(name, arguments, expected, properties[expected.name].get(name))


def _argument_mistakes(
    name: str, arguments: Mapping[str, JSON], expected: ExpectedCall, spec: JSONObject | None
) -> Iterator[str]:
    if spec is None:
        yield "unknown argument"
    elif name not in arguments and "default" not in spec:
        yield "missing argument"
    elif name not in arguments:
        if not _same_argument(spec["default"], expected.arguments[name], spec):
            yield "optional argument left out"
    elif name not in expected.arguments:
        if "default" not in spec or not _same_argument(arguments[name], spec["default"], spec):
            yield "optional argument not asked for"
    elif not _same_argument(arguments[name], expected.arguments[name], spec):
        alike = str(arguments[name]).lower() == str(expected.arguments[name]).lower()
        yield "wrong type" if alike else "wrong value"


Parse = Callable[[str], Sequence[ToolCall]]


@dataclass(frozen=True, slots=True)
class CallMarks:
    """The texts that begin and end a call."""

    opener: str
    closer: str


@dataclass(frozen=True, slots=True)
class CreditSegment:
    tokens: int
    """Number of tokens. A token that reaches into the next segment belongs to this one."""
    right: bool


def credit_segments(
    token_texts: Sequence[str],
    marks: CallMarks,
    parse: Parse,
    expected: Sequence[ExpectedCall],
    schemas: Sequence[JSONObject],
) -> list[CreditSegment]:
    """The segments of an answer, given the text of each of its tokens."""
    remaining, call_count, offset = list(expected), 0, 0
    token_ends = list(accumulate(map(len, token_texts)))
    boundaries: list[tuple[int, bool]] = []
    """Tokens of the answer up to the end of each segment, and whether the segment is right."""
    for text, closed in _split_calls("".join(token_texts), marks.closer):
        opener_at, start, offset = text.find(marks.opener), offset, offset + len(text)
        end = bisect_left(token_ends, offset) + 1 if closed else len(token_texts)
        if opener_at < 0 and not closed:
            boundaries.append((end, call_count == len(expected)))
            break
        calls = parse(text)
        more_expected, call_count = call_count < len(expected), call_count + len(calls)
        matches = [remove_match(call, remaining, schemas) for call in calls]
        count_fits = call_count <= len(expected) if closed else call_count == len(expected)
        opening_end = (
            end if opener_at < 0 else bisect_left(token_ends, start + opener_at + len(marks.opener)) + 1
        )
        boundaries += [
            (opening_end, more_expected and opener_at >= 0),
            (end, bool(calls) and count_fits and all(matches)),
        ]
    return [
        CreditSegment(end - start, right) for (start, _), (end, right) in pairwise([(0, True), *boundaries])
    ]


def _split_calls(text: str, closer: str) -> Iterator[tuple[str, bool]]:
    """(the text up to and with each closer, True), then (the rest, False)."""
    *calls, rest = text.split(closer)
    yield from ((call + closer, True) for call in calls)
    yield rest, False


def token_advantages(answers: Sequence[Sequence[CreditSegment]]) -> list[list[float]]:
    """An advantage for each token of each answer, from the segments at the same position in the group.

    It is right / mean - 1, the gradient of the log of the probability of being right: where one answer of
    sixteen is right it counts fifteenfold, so that a rare success is reinforced before the policy drops it.
    """
    means = [
        sum(outcomes) / len(outcomes)
        for position in zip_longest(*([segment.right for segment in segments] for segments in answers))
        if (outcomes := [right for right in position if right is not None])
    ]
    return [
        [
            round(segment.right / mean - 1, 6) if mean else 0.0
            for segment, mean in zip(segments, means[: len(segments)], strict=True)
            for _ in range(segment.tokens)
        ]
        for segments in answers
    ]
