"""Keys of the settings model: from dotted text to a path and back, with what each key takes.

Names inside a mapping (`prices.openrouter/some-model-4.6.input`) may contain dots; a key is therefore read
against the model, never simply split.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel

from hermes.config.settings import Settings
from hermes.config.yaml_file import parse_scalar
from hermes.core import JSON
from hermes.core.names import did_you_mean, nearest
from hermes.errors import ConfigError

KeyPath: TypeAlias = tuple[str, ...]
Kind: TypeAlias = Any
"""A field's annotation, less `None`."""


def find_path(segments: Sequence[str]) -> KeyPath | None:
    """The path these dot-separated parts name, or None if the model has no such key."""
    return _match(Settings, tuple(segments))


def require_path(key: str) -> KeyPath:
    """The path of a key typed by a person; unknown keys are refused with the nearest ones."""
    path = find_path(key.split("."))
    if path is None:
        raise ConfigError(f"unknown setting '{key}'", unknown_key_hint(key))
    return path


def dotted(path: Sequence[str | int]) -> str:
    """`('toolsets', 2)` as `toolsets[2]`, the rest with dots."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def suggest(key: str) -> list[str]:
    """Known keys near this one: same last part elsewhere, or similar as a whole."""
    head, _, last = key.rpartition(".")
    keys = list(_keys(Settings, ""))
    first = key.partition(".")[0]
    field = Settings.model_fields.get(first)
    entry: Kind = _mapping_value(_kind(field.annotation)) if field else None
    if head and _is_section(entry):
        keys += [f"{head}.{name}" for name in entry.model_fields]
    same = [candidate for candidate in keys if candidate.rpartition(".")[2] == last]
    return same or nearest(key, keys, cutoff=0.8)


def unknown_key_hint(key: str) -> str:
    """Suggests existing keys for one that does not exist."""
    return did_you_mean(suggest(key), "'hermes config show' lists every setting")


def is_container(path: Sequence[str]) -> bool:
    """True if the key holds further keys (a section or a mapping) rather than a value."""
    kind = _kind_at(path)
    return _is_section(kind) or _mapping_value(kind) is not None


def read_value(path: KeyPath, text: str) -> JSON:
    """Text from a command line or an environment variable as the JSON value the key takes.

    Text stays text where the key takes text; lists are `[a, b]` or `a,b`; the rest is a YAML scalar.
    Whether the value is acceptable is the validation's business.
    """
    kind = _kind_at(path)
    if kind is str or _origin(kind) is Literal:
        return None if text in ("null", "~") else text
    try:
        value = parse_scalar(text, dotted(path))
    except ConfigError as error:
        raise ConfigError(
            f"{dotted(path)}: the value is not readable as YAML", "lists are [a, b], mappings {name: value}"
        ) from error
    if _origin(kind) is tuple and isinstance(value, str):
        return [item.strip() for item in value.split(",")]
    return value


def _match(kind: Kind, segments: KeyPath) -> KeyPath | None:
    if not segments or kind is Any:
        return segments
    if _is_section(kind):
        field = kind.model_fields.get(segments[0])
        rest = _match(_kind(field.annotation), segments[1:]) if field else None
        return None if rest is None else (segments[0], *rest)
    inner = _mapping_value(kind)
    if inner is None or "" in segments:
        return None
    for cut in range(1, len(segments)):
        if rest := _match(inner, segments[cut:]):
            return (".".join(segments[:cut]), *rest)
    misspelt = len(segments) > 1 and _is_section(inner) and _near(segments[-1], inner)
    return None if misspelt else (".".join(segments),)


def _near(name: str, section: type[BaseModel]) -> bool:
    return bool(nearest(name, section.model_fields, cutoff=0.7))


def _kind_at(path: Sequence[str]) -> Kind:
    kind: Kind = Settings
    for part in path:
        if _is_section(kind):
            field = kind.model_fields.get(part)
            kind = _kind(field.annotation) if field else None
        else:
            kind = _mapping_value(kind)
    return kind


def _kind(annotation: Kind) -> Kind:
    if _origin(annotation) in (Union, types.UnionType):
        return next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def _origin(kind: Kind) -> Kind:
    return get_origin(kind)


def _is_section(kind: Kind) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _mapping_value(kind: Kind) -> Kind:
    return _kind(get_args(kind)[1]) if _origin(kind) is dict else None


def _keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield prefix + name
        kind = _kind(field.annotation)
        if _is_section(kind):
            yield from _keys(kind, f"{prefix}{name}.")
