"""A reward for answers that are JSON of a given schema.

The answer is one JSON document, alone or in one fenced block; prose around it, a second document,
NaN, and keys given twice are refused, since readers of JSON disagree about them.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from hermes.core import JSON, JSONObject
from hermes.envs.rewards.result import GraderError, RewardResult

_FENCED = re.compile(r"\A```(?:json)?[ \t]*\n(.*?)\n?```\Z", re.DOTALL | re.IGNORECASE)


def matches_schema(answer: str, schema: JSONObject) -> RewardResult:
    """1 if the answer is JSON and fits the schema; parts tell the two apart."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import EMPTY_REGISTRY

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise GraderError(f"the reward's schema is not a JSON schema: {error.message}") from error
    try:
        document = read_json(answer)
    except ValueError as error:
        return RewardResult(0.0, {"parses": 0.0, "valid": 0.0}, f"not JSON: {error}")
    try:
        # With this registry a schema that refers to an address is an error, not a download.
        problem = next(Draft202012Validator(schema, registry=EMPTY_REGISTRY).iter_errors(document), None)
    except Unresolvable as error:
        raise GraderError(f"the reward's schema refers to what it does not hold: {error}") from error
    valid = float(problem is None)
    detail = "" if problem is None else f"{problem.json_path}: breaks {problem.validator}"
    return RewardResult(valid, {"parses": 1.0, "valid": valid}, detail)


def read_json(answer: str) -> JSON:
    """The one JSON document of an answer; ValueError says why there is none."""
    text = answer.strip()
    fenced = _FENCED.match(text)
    try:
        return json.loads(
            fenced.group(1) if fenced else text, object_pairs_hook=_unique, parse_constant=_refuse
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, JSON]]) -> JSONObject:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
