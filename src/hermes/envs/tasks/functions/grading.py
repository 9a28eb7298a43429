"""Compares the calls a model made with the calls that a request expects, argument by argument. Pure.

The order of the calls does not matter, their number does: a call too many is as wrong as a call too few.
Types are those of the schema: "3" is not 3, true is not 1, 3.0 is the integer 3. Strings are compared without
regard to case and spacing unless the schema lists the allowed values. A parameter with a default may be left
out or set to that default; a parameter that the schema does not declare makes the call wrong.

`grade_calls` gives the reward, and `mistakes` describes what is wrong, for the logs: it returns an empty list
exactly where `grade_calls` reports success.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, zip_longest

from hermes.core import JSON, JSONObject, ToolCall
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.envs.rewards.text import normalised
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
            return isinstance(actual, str) and normalised(actual) == normalised(expected)


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
