"""A reward for answers that are JSON of a given schema.

The response is one JSON document, alone or in one fenced block. Prose around it, a second document, NaN, and
duplicate keys are rejected, since JSON parsers disagree about them.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from hermes.core import JSON, JSONObject
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.safety.json_schema import schema_fault, violations

_FENCED = re.compile(r"\A```(?:json)?[ \t]*\n(.*?)\n?```\Z", re.DOTALL | re.IGNORECASE)


def matches_schema(response: str, schema: JSONObject) -> RewardResult:
    """1 if the response is JSON (part `parses`) and fits the schema (part `valid`)."""
    fault = schema_fault(schema)
    if fault is not None:
        raise GraderError(f"the reward's schema is not a JSON schema: {fault}")
    try:
        document = read_json(response)
    except ValueError as error:
        return RewardResult(0.0, {"parses": 0.0, "valid": 0.0}, f"not JSON: {error}")
    try:
        problem = next(iter(violations(document, schema)), None)
    except ValueError as error:
        raise GraderError(f"the reward's schema cannot be applied: {error}") from error
    valid = float(problem is None)
    detail = "" if problem is None else f"{problem.json_path}: violates {problem.validator}"
    return RewardResult(valid, {"parses": 1.0, "valid": valid}, detail)


def read_json(response: str) -> JSON:
    """The JSON document of a response; ValueError if there is not exactly one."""
    text = response.strip()
    fenced = _FENCED.match(text)
    try:
        return json.loads(
            fenced.group(1) if fenced else text,
            object_pairs_hook=_unique_keys,
            parse_constant=_reject_constant,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique_keys(pairs: list[tuple[str, JSON]]) -> JSONObject:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("duplicate key")
    return document


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
