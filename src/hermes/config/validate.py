"""From plain data to `Settings`, or to problems a person can act on.

Types are strict: `"30"` is not a number and `yes` is not true. A problem names the key, what is expected and
what was found; it never quotes a value whose key could hold a secret.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hermes.config.schema import dotted, unknown_key_hint
from hermes.config.secrets import looks_secret
from hermes.config.settings import Settings
from hermes.core import JSON, JSONObject
from hermes.core.names import did_you_mean, nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "finite": "a finite number",
}
_BOUNDS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
_BOUND_WORDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
_LONGEST_QUOTE = 40


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One thing wrong with the settings."""

    path: tuple[str | int, ...]
    message: str
    """Begins with the key; the file or variable it comes from is not known here."""
    hint: str


def validate(data: JSONObject) -> tuple[Settings | None, tuple[SettingProblem, ...]]:
    """The settings, or None and every problem."""
    try:
        # By way of JSON text: strict about types, yet a list is how JSON writes a tuple.
        return Settings.model_validate_json(json.dumps(data), strict=True), ()
    except ValidationError as error:
        return None, tuple(_problem(item) for item in error.errors())


def _problem(error: ErrorDetails) -> SettingProblem:
    path = error["loc"]
    key = dotted(path)
    if error["type"] == "extra_forbidden":
        hint = unknown_key_hint(key)
        if looks_secret(key):
            hint = "keys do not belong in config.yaml: 'hermes config set NAME_API_KEY' stores one in .env"
        return SettingProblem(path, f"unknown setting '{key}'", hint)
    if error["type"] == "missing":
        return SettingProblem(path, f"{key} is required", f"hermes config set {key} VALUE")
    return SettingProblem(
        path,
        f"{key}: expected {_expected(error)}, got {_describe_value(key, error['input'])}",
        _nearest(error),
    )


def _nearest(error: ErrorDetails) -> str:
    """The allowed values that resemble what was written; empty if none does."""
    if error["type"] != "literal_error" or not isinstance(error["input"], str):
        return ""
    allowed = re.findall(r"'([^']*)'", str(error["ctx"]["expected"]))
    return did_you_mean(nearest(error["input"].lower(), allowed))


def _expected(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _BOUNDS:
        bound = _BOUNDS[kind]
        return f"{_BOUND_WORDS[bound]} {context[bound]}"
    if kind == "literal_error":
        return str(context["expected"])
    if kind == "value_error":
        return str(context["error"])
    return _EXPECTED.get(kind.partition("_")[0], error["msg"])


def _describe_value(key: str, value: JSON) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    if looks_secret(key) or key.endswith(("key_env", "url")) or len(value) > _LONGEST_QUOTE:
        return "other text"
    return f"the text {value!r}"
