"""A field of a command's model: its default, bounds and help, and how it is written on a command line.

A command declares its options once, as a pydantic model whose fields are made by `option`. The command line
(`cli/model_options.py`), YAML files, the fields of a run and the reference page read them from there;
`command_words` writes them back, for a process that is started with them.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

PathKind = Literal["file", "existing", "folder", "any"]


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field is written on a command line."""

    names: tuple[str, ...] = ()
    """The listed spellings; without one, the field's own name with dashes."""
    former: tuple[str, ...] = ()
    """Spellings that are accepted and not listed."""
    metavar: str | None = None
    path: PathKind = "any"
    """For a path: a file or anything that exists, a folder that may be new, or any path."""
    argument: bool = False
    """It is positional."""
    hidden: bool = False


class Options(BaseModel):
    """A command's options; they do not change."""

    model_config = ConfigDict(frozen=True)


def option(
    default: Any,
    help_text: str,
    *names: str,
    former: tuple[str, ...] = (),
    metavar: str | None = None,
    path: PathKind = "any",
    argument: bool = False,
    hidden: bool = False,
    **bounds: Any,
) -> Any:
    """A pydantic field with its help; `bounds` are pydantic's (ge, gt, le, lt, min_length, max_length)."""
    flag = Flag(names, former, metavar, path, argument, hidden)
    return Field(default, description=help_text, json_schema_extra={"flag": flag}, **bounds)  # type: ignore[dict-item]


def flag_of(name: str, info: FieldInfo) -> Flag:
    extra = info.json_schema_extra
    flag = extra.get("flag") if isinstance(extra, dict) else None
    declared = flag if isinstance(flag, Flag) else Flag()
    if declared.names:
        return declared
    return Flag(
        (f"--{name.replace('_', '-')}",),
        *(declared.former, declared.metavar, declared.path, declared.argument, declared.hidden),
    )


def bare_type(info: FieldInfo) -> Any:
    """The annotation without `None`."""
    if typing.get_origin(info.annotation) in (types.UnionType, typing.Union):
        return next(part for part in typing.get_args(info.annotation) if part is not type(None))
    return info.annotation


def is_repeatable(annotation: Any) -> bool:
    """A tuple of any length is written once for each value; a list is one word with commas."""
    return typing.get_origin(annotation) is tuple and Ellipsis in typing.get_args(annotation)


def split_words(value: Any) -> Any:
    """A validator for lists, which a command line writes as one word with commas."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def split_each(values: Any) -> Any:
    """A validator for tuples that a command line may also write as one word with commas."""
    return [word for value in values for word in split_words(value) if word]


def command_words(model: type[BaseModel], values: Mapping[str, Any]) -> tuple[str, ...]:
    """The values as words of a command line; None, False and empty ones are left out."""
    words: list[str] = []
    for name, value in values.items():
        if value is None or value is False or value in ("", (), []):
            continue
        info = model.model_fields[name]
        flag = next(name for name in flag_of(name, info).names if name.startswith("--"))
        annotation = bare_type(info)
        if value is True:
            words.append(flag)
        elif is_repeatable(annotation):
            words += [f"{flag}={word}" for word in value]
        elif isinstance(value, list | tuple) and bounds_of(info).get("max_length"):
            words += [flag, *map(str, value)]
        else:
            words.append(f"{flag}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return tuple(words)


def bounds_of(info: FieldInfo) -> dict[str, Any]:
    """Pydantic's constraints by their names: ge, gt, le, lt, min_length, max_length."""
    names = ("ge", "gt", "le", "lt", "min_length", "max_length")
    return {
        name: getattr(constraint, name)
        for constraint in info.metadata
        for name in names
        if getattr(constraint, name, None) is not None
    }
