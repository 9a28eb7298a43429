"""Whether the values of a dataclass have the types of its fields, recursively.

For values that were read from a file: the classes themselves check nothing, and a number in the place of a
text would be noticed much later.
"""

from __future__ import annotations

import types
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

_LARGEST_INT = 2**63 - 1


def problem(value: object, hint: Any, where: str) -> str | None:
    """The first problem, with the name of the field; None if nothing is. Knows the types that core uses."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return None
    if origin in (Union, types.UnionType):
        problems = [problem(value, part, where) for part in inner]
        return None if None in problems else problems[0]
    if origin is tuple:
        if not isinstance(value, tuple):
            return f"{where} is {type(value).__name__}"
        parts = (problem(item, inner[0], f"{where}[{i}]") for i, item in enumerate(value))
        return next((part for part in parts if part is not None), None)
    if not _is_a(value, origin or hint):
        return f"{where} is {type(value).__name__}"
    if is_dataclass(value) and not isinstance(value, type):
        hints = _hints(type(value))
        names = ((part.name, getattr(value, part.name)) for part in fields(value))
        parts = (problem(item, hints[name], f"{where}.{name}") for name, item in names)
        return next((part for part in parts if part is not None), None)
    return None


def _is_a(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST_INT
    return isinstance(value, kind)


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)
