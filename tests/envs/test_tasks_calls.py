"""Calls held against the calls that were wanted: types, defaults, order, number, and partial credit."""

from __future__ import annotations

import json
import random
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.core import JSONObject, ToolCall
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.envs.tasks.functions.grading import grade_calls
from hermes.envs.tasks.functions.requests import (
    CATEGORIES,
    ExpectedCall,
    FunctionRequest,
    all_functions,
    make_request,
)
from hermes.envs.tasks.split import Split, distinct

BOOK: JSONObject = {
    "name": "book",
    "parameters": {
        "properties": {
            "city": {"type": "string"},
            "nights": {"type": "integer"},
            "budget": {"type": "number"},
            "cabin": {"type": "string", "enum": ["first", "second"]},
            "guests": {"type": "array", "items": {"type": "string"}},
            "insured": {"type": "boolean", "default": False},
            "limit": {"type": "integer", "default": 10},
        },
        "required": ["city", "nights", "budget", "cabin", "guests"],
    },
}
CANCEL: JSONObject = {
    "name": "cancel",
    "parameters": {"properties": {"id": {"type": "string"}}, "required": ["id"]},
}
RIGHT: JSONObject = {"city": "Oslo", "nights": 3, "budget": 99.5, "cabin": "first", "guests": ["Ann", "Bo"]}


def made(name: str, arguments: object) -> ToolCall:
    return ToolCall("c", name, arguments if isinstance(arguments, str) else json.dumps(arguments))


def grade(calls: list[ToolCall], wanted: list[ExpectedCall], *, shaped: bool = False) -> RewardResult:
    return grade_calls(calls, wanted, [BOOK, CANCEL], shaped=shaped)


def one(arguments: object) -> RewardResult:
    return grade([made("book", arguments)], [ExpectedCall("book", RIGHT)])


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"city": " OSLO "},
        {"nights": 3.0},
        {"insured": False},
        {"insured": False, "limit": 10},
        {"limit": 10.0},
    ],
)
def test_equal_values_and_stated_defaults_are_right(change: JSONObject) -> None:
    assert one({**RIGHT, **change}).value == 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"city": "Bergen"},
        {"city": ["Oslo"]},
        {"city": None},
        {"nights": "3"},
        {"nights": 4},
        {"nights": True},
        {"budget": "99.5"},
        {"budget": 99},
        {"cabin": "First"},
        {"guests": "Ann, Bo"},
        {"guests": ["Bo", "Ann"]},
        {"guests": ["Ann"]},
        {"insured": True},
        {"insured": 0},
        {"insured": "false"},
        {"limit": 11},
        {"unknown": 1},
    ],
)
def test_other_values_types_and_unknown_arguments_are_wrong(change: JSONObject) -> None:
    result = one({**RIGHT, **change})
    assert result.value == 0.0
    assert result.parts["names"] == 1.0
    assert 0.5 < result.parts["arguments"] < 1.0


def test_a_missing_argument_is_wrong_and_so_is_a_default_where_another_value_was_asked_for() -> None:
    assert one({key: value for key, value in RIGHT.items() if key != "city"}).value == 0.0
    wanted = ExpectedCall("book", {**RIGHT, "insured": True})
    assert grade([made("book", RIGHT)], [wanted]).value == 0.0
    assert grade([made("book", {**RIGHT, "insured": True})], [wanted]).value == 1.0


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"city": NaN'])
def test_arguments_that_do_not_parse_are_wrong_and_not_an_error(text: str) -> None:
    assert grade([made("book", text)], [ExpectedCall("book", RIGHT)]).value == 0.0


def test_the_order_of_parallel_calls_does_not_matter_but_their_number_does() -> None:
    first, second = ExpectedCall("cancel", {"id": "a"}), ExpectedCall("cancel", {"id": "b"})
    a, b = made("cancel", {"id": "a"}), made("cancel", {"id": "b"})
    assert grade([a, b], [first, second]).value == 1.0
    assert grade([b, a], [first, second]).value == 1.0
    for calls in ([a], [a, a], [a, b, b], [a, b, made("book", RIGHT)], []):
        assert grade(calls, [first, second]).value == 0.0
    assert grade([a, a], [first, first]).value == 1.0
    assert grade([a, a], [first, second], shaped=True).value == pytest.approx(0.5 + 0.5 * 0.4)


def test_where_no_function_fits_every_call_is_wrong() -> None:
    assert grade([], []).value == 1.0
    assert grade([made("cancel", {"id": "a"})], []).value == 0.0
    assert grade([made("nonsense", "{")], []).value == 0.0


def test_shaping_gives_part_for_part_and_the_strict_verdict_stays() -> None:
    wanted = [ExpectedCall("book", RIGHT)]
    wrong_name = grade([made("cancel", RIGHT)], wanted, shaped=True)
    name_only = grade([made("book", {"limit": 3})], wanted, shaped=True)
    nearly = grade([made("book", {**RIGHT, "nights": 4})], wanted, shaped=True)
    right = grade([made("book", RIGHT)], wanted, shaped=True)
    assert [wrong_name.value, name_only.value] == [0.0, 0.4]
    assert 0.4 < nearly.value < 1.0
    assert right.value == 1.0
    assert [result.success for result in (wrong_name, name_only, nearly, right)] == [
        False,
        False,
        False,
        True,
    ]


def test_a_flood_of_calls_is_wrong_worth_little_and_soon_graded() -> None:
    flood = [made("book", RIGHT), *[made("cancel", {"id": str(n)}) for n in range(5000)]]
    result = grade(flood, [ExpectedCall("book", RIGHT)], shaped=True)
    assert result.value < 0.001
    assert not result.success


def test_a_wanted_call_of_a_function_that_is_not_on_offer_is_the_graders_failure() -> None:
    with pytest.raises(GraderError, match="not on offer: fly"):
        grade([], [ExpectedCall("fly", {})])


@given(st.integers(0, 10**6))
def test_the_right_calls_in_any_order_are_right_and_any_one_less_or_more_is_not(seed: int) -> None:
    rng = random.Random(seed)
    request = make_request(rng, Split.TRAIN)
    schemas = [function.schema for function in request.offered]
    calls = [made(call.name, call.arguments) for call in request.expected_calls]
    rng.shuffle(calls)
    assert grade_calls(calls, request.expected_calls, schemas).value == 1.0
    extra = made(request.offered[0].name, {})
    assert grade_calls([*calls, extra], request.expected_calls, schemas).value == 0.0
    if calls:
        assert grade_calls(calls[1:], request.expected_calls, schemas).value == 0.0


def test_there_are_hundreds_of_functions_with_schemas_that_the_wanted_calls_fit() -> None:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    functions = all_functions()
    assert len({function.name for function in functions}) == len(functions) >= 300
    for function in functions:
        Draft202012Validator.check_schema(function.schema["parameters"])
    for request in requests(300):
        schemas = {function.name: function.schema["parameters"] for function in request.offered}
        for call in request.expected_calls:
            Draft202012Validator(schemas[call.name]).validate(call.arguments)


def test_every_category_has_the_shape_its_name_says() -> None:
    seen: dict[str, list[FunctionRequest]] = {name: [] for name in CATEGORIES}
    for request in requests(500):
        seen[request.category].append(request)
    assert all(len(found) > 50 for found in seen.values())
    assert all(len(item.offered) == 1 == len(item.expected_calls) for item in seen["simple"])
    assert all(len(item.offered) > 1 == len(item.expected_calls) for item in seen["multiple"])
    assert all(len(item.offered) == 1 < len(item.expected_calls) for item in seen["parallel"])
    assert all(len({call.name for call in item.expected_calls}) == 2 for item in seen["parallel_multiple"])
    assert all(item.offered and not item.expected_calls for item in seen["irrelevant"])


def test_a_request_says_every_value_that_its_calls_need() -> None:
    for request in requests(300):
        for call in request.expected_calls:
            for value in call.arguments.values():
                if isinstance(value, bool):
                    continue
                for part in value if isinstance(value, list) else [value]:
                    assert str(part) in request.text, (request.text, call)


def requests(count: int) -> list[Any]:
    return list(islice(distinct(lambda rng: make_request(rng, Split.TRAIN), Split.TRAIN, 9), count))
