"""Checks YAML, JSON and TOML: they parse, and their keys are fields of the class that the block names."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from hermes.config.yaml_file import limited_yaml
from skills_check.names import AbsentTarget, ClassTarget, FunctionTarget, NameIndex, OpenTarget, Target
from skills_check.signatures import ClassField, allows_extra, class_fields, has_fields, signature

_MAX_DEPTH = 8


class ConfigBlockError(Exception):
    """A block that does not parse. `line` counts inside the block."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def parse_config(text: str, language: str) -> list[Any]:
    """The documents of the block (YAML may have several); raises `ConfigBlockError`."""
    if language == "json":
        try:
            return [json.loads(text)]
        except json.JSONDecodeError as error:
            return _parse_json_lines(text, error)
    if language == "toml":
        try:
            return [tomllib.loads(text)]
        except tomllib.TOMLDecodeError as error:
            raise ConfigBlockError(1, f"is not valid TOML: {error}") from error
    return _parse_yaml(text)


def _parse_json_lines(text: str, error: json.JSONDecodeError) -> list[Any]:
    """JSON Lines are a common form of data; anything else is the first error."""
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError:
        raise ConfigBlockError(error.lineno, f"is not valid JSON: {error.msg}") from error


def _parse_yaml(text: str) -> list[Any]:
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    # Tags of other programs (lm-eval's !function) are read as plain values.
    yaml = limited_yaml("rt")
    try:
        return list(yaml.load_all(text))
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigBlockError(line, f"is not valid YAML: {error.problem}") from error
    except (YAMLError, ValueError) as error:
        raise ConfigBlockError(1, f"is not valid YAML: {error}") from error


def check_keys(documents: list[Any], dotted: str, index: NameIndex) -> tuple[list[str], int]:
    """The keys that `dotted` does not have, as sentences; how many keys were looked up."""
    target = index.resolve(dotted)
    if isinstance(target, AbsentTarget):
        return [f"the schema {dotted} does not exist: {target.reason}"], 0
    if isinstance(target, OpenTarget) or not isinstance(target, ClassTarget | FunctionTarget):
        return [f"the schema {dotted} is not a class or function of a pinned package"], 0
    problems: list[str] = []
    count = 0
    for document in documents:
        for path, problem in _walk(document, [target], index, "", 0):
            count += 1
            if problem:
                problems.append(f"{dotted} has no field '{path}'{problem}")
    return problems, count


def key_names(dotted: str, index: NameIndex) -> tuple[frozenset[str], bool] | None:
    """The fields or parameters of `dotted`, and whether others are accepted; None: it does not exist."""
    target = index.resolve(dotted)
    if isinstance(target, AbsentTarget):
        return None
    if not isinstance(target, ClassTarget | FunctionTarget):
        return frozenset(), True  # an object that is made at import, such as a wrapped class
    return _keys(target, index)


def _keys(target: ClassTarget | FunctionTarget, index: NameIndex) -> tuple[frozenset[str], bool]:
    if isinstance(target, ClassTarget) and has_fields(index, target):
        return frozenset(class_fields(index, target)), allows_extra(index, target)
    accepted = signature(index, target)
    return accepted.keywords, accepted.open


def _walk(
    value: Any, targets: list[ClassTarget | FunctionTarget], index: NameIndex, prefix: str, depth: int
) -> Iterator[tuple[str, str]]:
    """(dotted key, '' or the nearest name) of every key that was looked up."""
    if depth > _MAX_DEPTH or not targets:
        return
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, targets, index, prefix, depth + 1)
    if not isinstance(value, Mapping):
        return
    allowed = [_keys(target, index) for target in targets]
    fields = {name: field for target in targets for name, field in _fields(target, index).items()}
    names = frozenset().union(*(keys for keys, _ in allowed))
    accepts_any = any(is_open for _, is_open in allowed)
    for key, inner in value.items():
        path = f"{prefix}{key}"
        if key not in names:
            if not accepts_any:
                close = get_close_matches(str(key), names, n=1)
                yield path, f" (nearest: {close[0]})" if close else " "
            continue
        yield path, ""
        if key in fields:
            yield from _walk(inner, annotated_classes(fields[key], index), index, f"{path}.", depth + 1)


def _fields(target: Target, index: NameIndex) -> dict[str, ClassField]:
    return class_fields(index, target) if isinstance(target, ClassTarget) else {}


def annotated_classes(field: ClassField, index: NameIndex) -> list[ClassTarget | FunctionTarget]:
    """The classes with fields that an annotation names; a plain dict among them accepts anything."""
    classes: list[ClassTarget | FunctionTarget] = []
    for node in ast.walk(field.annotation):
        if isinstance(node, ast.Name) and node.id in ("dict", "Dict", "Any", "Mapping"):
            return []
        if isinstance(node, ast.Name | ast.Attribute):
            target = index.expression(field.module, node)
            if isinstance(target, ClassTarget) and has_fields(index, target):
                classes.append(target)
    return classes
