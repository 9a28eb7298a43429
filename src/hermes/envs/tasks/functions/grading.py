"""Holding the calls a model made against the calls that were wanted, argument by argument.

Order does not matter, number does: a call too many is as wrong as a call too few. Types are those of the
schema: "3" is not 3, true is not 1, 3.0 is the integer 3. Texts are compared without regard to case and
spacing unless the schema lists the allowed values. A parameter with a default may be left out or
given as what it is by default; one that the schema does not know makes the call wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from hermes.core import JSON, JSONObject, ToolCall
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.envs.rewards.text import normalised
from hermes.envs.tasks.functions.requests import ExpectedCall

_MOST_CALLS = 6
"""Calls beyond these are only counted: a flood is wrong already."""


@dataclass(frozen=True, slots=True)
class _Fit:
    """How one call made fits one call wanted."""

    name: float
    arguments: float
    """Share of the arguments that are right; 1 exactly if all are and there are no others."""

    @property
    def credit(self) -> float:
        return 0.4 * self.name + 0.6 * self.arguments


_NO_FIT = _Fit(0.0, 0.0)


def grade_calls(
    made: Sequence[ToolCall],
    wanted: Sequence[ExpectedCall],
    schemas: Sequence[JSONObject],
    *,
    shaped: bool = False,
) -> RewardResult:
    """1 if the calls made are the calls wanted; with `shaped`, in part for what is right.

    Parts: `names` and `arguments` (shares over all calls) and `success`, the strict verdict. What is wrong is
    said by `call_mistakes`.
    """
    known = {schema["name"]: schema["parameters"] for schema in schemas}
    if missing := [call.name for call in wanted if call.name not in known]:
        raise GraderError(f"the wanted calls name functions that are not on offer: {', '.join(missing)}")
    if not wanted:
        value = float(not made)
        return RewardResult(value, {"names": value, "arguments": value, "success": value})
    fits = _best_fit(made[:_MOST_CALLS], wanted, known)
    most = max(len(made), len(wanted))
    names, arguments = (sum(getattr(fit, part) for fit in fits) / most for part in ("name", "arguments"))
    success = float(arguments == 1.0)
    credit = sum(fit.credit for fit in fits) / most
    parts = {"names": names, "arguments": arguments, "success": success}
    return RewardResult((1.0 if success else credit) if shaped else success, parts)


def take(made: ToolCall, left: list[ExpectedCall], schemas: Sequence[JSONObject]) -> bool:
    """Whether the call is one of those left to be made, which it then no longer is."""
    known = {schema["name"]: schema["parameters"] for schema in schemas}
    for index, wanted in enumerate(left):
        if wanted.name in known and _fit(made, wanted, known).arguments == 1.0:
            del left[index]
            return True
    return False


def _best_fit(
    made: Sequence[ToolCall], wanted: Sequence[ExpectedCall], known: Mapping[str, JSONObject]
) -> Sequence[_Fit]:
    table = [[_fit(call, want, known) for call in made] for want in wanted]
    padded = [*range(len(made)), *[None] * len(wanted)]
    assignments = (
        [_NO_FIT if column is None else row[column] for row, column in zip(table, order, strict=True)]
        for order in set(permutations(padded, len(wanted)))
    )
    return max(assignments, key=lambda fits: sum(fit.credit for fit in fits))


def _fit(made: ToolCall, wanted: ExpectedCall, known: Mapping[str, JSONObject]) -> _Fit:
    if made.name != wanted.name:
        return _NO_FIT
    try:
        given = made.parsed()
    except (ValueError, RecursionError):
        return _NO_FIT
    properties: JSONObject = known[wanted.name]["properties"]
    defaults = {name: spec["default"] for name, spec in properties.items() if "default" in spec}
    expected, effective = defaults | wanted.arguments, defaults | given
    judged = wanted.arguments.keys() | given.keys()
    right = sum(
        name in expected
        and name in effective
        and same_value(effective[name], expected[name], properties[name])
        for name in judged
    )
    return _Fit(1.0, right / len(judged) if judged else 1.0)


def same_value(given: JSON, expected: JSON, spec: JSONObject) -> bool:
    """Whether an argument is as expected; `spec`: how the schema declares it."""
    match spec["type"]:
        case "boolean":
            return isinstance(given, bool) and given == expected
        case "integer" | "number":
            return _is_number(given) and bool(given == expected)
        case "array":
            return (
                isinstance(given, list)
                and len(given) == len(expected)
                and all(
                    same_value(one, other, spec["items"]) for one, other in zip(given, expected, strict=True)
                )
            )
        case _ if "enum" in spec:
            return bool(given == expected)
        case _:
            return isinstance(given, str) and normalised(given) == normalised(expected)


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
