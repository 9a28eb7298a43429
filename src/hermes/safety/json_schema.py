"""Checks JSON schemas that somebody else wrote, and values against them.

A schema may be nested without end, refer to itself or to an address: that is a ValueError, never a traceback
and never a download.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError  # type: ignore[import-untyped]

_TOO_DEEP = "it is nested too deeply, or refers to itself without end"


def schema_fault(schema: JSON) -> str | None:
    """Why it is no JSON schema; None if it is one."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return str(error.message)[:500]
    except RecursionError:
        return _TOO_DEEP
    return None


def violations(value: JSON, schema: JSONObject) -> list[ValidationError]:
    """How the value breaks the schema. ValueError: the schema cannot be applied."""
    from jsonschema import Draft202012Validator
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import EMPTY_REGISTRY

    try:  # with this registry a schema that refers to an address is an error, not a download
        return list(Draft202012Validator(schema, registry=EMPTY_REGISTRY).iter_errors(value))
    except Unresolvable as error:
        raise ValueError(f"it has a reference that cannot be resolved: {error}") from error
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except re.error as error:
        raise ValueError(f"it has a pattern that is none: {error}") from error
