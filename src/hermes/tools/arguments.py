"""A tool call's arguments: parsed and validated against the tool's schema. Nothing is coerced or dropped.

Valid arguments need no further checks: they are JSON that every part of the system can write (no NaN, no
infinity, no lone surrogate), and they have the types of the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject, ToolCall, ToolErrorKind
from hermes.errors import ToolError

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]

_MAX_PROBLEMS = 5
_VALUE_CHARS = 120
_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def read_arguments(call: ToolCall, schema: JSONObject) -> JSONObject:
    """The arguments of a call; ToolError(bad_arguments) names error, location and expected value."""
    try:
        arguments = call.parsed()
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except RecursionError:
        raise _argument_error("the arguments are nested too deeply") from None
    except UnicodeEncodeError:
        raise _argument_error("the arguments hold half a surrogate pair, which no text can hold") from None
    except ValueError as error:
        raise _argument_error(f"the arguments are not valid JSON: {error}") from None
    problems = _problems(arguments, schema)
    if problems:
        raise _argument_error("; ".join(problems))
    return arguments


def _problems(arguments: JSONObject, schema: JSONObject) -> list[str]:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from referencing.jsonschema import EMPTY_REGISTRY

    # With this registry a schema with a remote reference is an error, not a download.
    validator = Draft202012Validator(schema, registry=EMPTY_REGISTRY)
    errors = sorted(validator.iter_errors(arguments), key=lambda error: [str(part) for part in error.path])
    problems = [_describe(error) for error in errors[:_MAX_PROBLEMS]]
    if len(errors) > _MAX_PROBLEMS:
        problems.append(f"and {len(errors) - _MAX_PROBLEMS} more")
    return problems


def _describe(error: ValidationError) -> str:
    where = _dotted(error.absolute_path)
    match error.validator:
        case "type":
            expected = error.validator_value
            names = expected if isinstance(expected, str) else " or ".join(expected)
            return f"{where}: expected {names}, got {_TYPES.get(type(error.instance), 'null')}"
        case "enum":
            allowed = ", ".join(json.dumps(value, ensure_ascii=False) for value in error.validator_value)
            return f"{where}: expected one of {allowed}, got {_short(error.instance)}"
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return f"{where}: missing {', '.join(missing)}"
        case "additionalProperties" if error.validator_value is False:
            properties = error.schema.get("properties", {})
            extra = ", ".join(name for name in error.instance if name not in properties)
            return f"{where}: unknown {extra[:_VALUE_CHARS]}; known: {', '.join(properties) or 'none'}"
        case rule:
            return f"{where}: {_short(error.instance)} breaks {rule} {_short(error.validator_value)}"


def _dotted(path: Iterable[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.lstrip(".") or "arguments"


def _short(value: JSON) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]} …"


def _argument_error(message: str) -> ToolError:
    return ToolError(message, kind=ToolErrorKind.BAD_ARGUMENTS)
