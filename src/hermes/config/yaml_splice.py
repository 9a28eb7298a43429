"""Changes to one key of a YAML text that leave every other byte of it alone.

The text is parsed for positions only, and the new value is spliced in; so comments, order, quotes and
indentation survive. Each result is parsed again and compared with what the change should have meant; a
file too unusual for that (aliases, complex keys) is refused, never half edited.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from hermes.config import yaml_file
from hermes.core import JSON, JSONObject
from hermes.errors import ConfigError

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

_INDENT = 2
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+-]*(:[A-Za-z0-9_./@+-]+)*")
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def with_value(text: str, path: tuple[str, ...], value: JSON, where: str) -> str:
    """The text with the key set. Sections on the way are created; a mapping is written as a block."""
    expected = _data(text, where)
    inner = expected
    for part in path[:-1]:
        if not isinstance(inner.get(part), dict):
            inner[part] = {}
        inner = inner[part]
    inner[path[-1]] = value
    return _verified(_set(text, path, value), expected, where)


def without(text: str, path: tuple[str, ...], where: str) -> str:
    """The text less the key, and less the sections that would be left empty; unchanged if it is not there."""
    expected = _data(text, where)
    parents: list[JSONObject] = [expected]
    for part in path[:-1]:
        below = parents[-1].get(part)
        if not isinstance(below, dict):
            return text
        parents.append(below)
    if path[-1] not in parents[-1]:
        return text
    depth = len(path) - 1
    while depth > 0 and len(parents[depth]) == 1:
        depth -= 1
    del parents[depth][path[depth]]
    return _verified(_remove(text, path[: depth + 1]), expected, where)


def _data(text: str, where: str) -> JSONObject:
    """The file's data as a tree: by way of JSON, so that an alias is a copy and not the same object."""
    data: JSONObject = json.loads(json.dumps(yaml_file.parse(text, where).data))
    return data


def _verified(text: str, expected: JSONObject, where: str) -> str:
    try:
        actual: JSON = yaml_file.parse(text, where).data
    except ConfigError:
        actual = None
    if actual != expected:
        raise ConfigError(
            f"{where} is written in a way that cannot be changed here", "use 'hermes config edit'"
        )
    return text


def _set(text: str, path: tuple[str, ...], value: JSON) -> str:
    node = yaml_file.compose(text)
    for depth, part in enumerate(path):
        pair = _pair(node, part)
        if pair is None:
            return _insert(text, node, part, _nest(path[depth + 1 :], value))
        key, node = pair
        if depth == len(path) - 1 or not _is_mapping(node):
            return _replace(text, path[: depth + 1], key, node, _nest(path[depth + 1 :], value))
    raise AssertionError("a path is never empty")


def _nest(path: tuple[str, ...], value: JSON) -> JSON:
    for part in reversed(path):
        value = {part: value}
    return value


def _insert(text: str, mapping: Node | None, name: str, value: JSON) -> str:
    """A new last key of the mapping (of the file, if that is empty)."""
    if mapping is None or not _is_mapping(mapping):
        return _line_after(text, len(text), _block(name, value, 0))
    if _is_flow(mapping):
        end = mapping.end_mark.index - 1
        comma = ", " if mapping.value else ""
        return f"{text[:end].rstrip()}{comma}{_flow(name)}: {_flow(value)}{text[end:]}"
    column = mapping.value[0][0].start_mark.column
    return _line_after(text, _end(text, mapping), _block(name, value, column))


def _replace(text: str, path: tuple[str, ...], key: Node, old: Node, value: JSON) -> str:
    end = _pair_end(text, key, old)
    if isinstance(value, dict) and value:
        if _is_empty(old):
            return _line_after(text, end, _children(value, key.start_mark.column + _INDENT))
        return _set(_remove(text, path), path, value)
    if _is_empty(old):
        return f"{text[:end]} {_scalar(value)}{text[end:]}"
    if not _is_block(old):
        return f"{text[: old.start_mark.index]}{_scalar(value)}{text[end:]}"
    colon = _after_colon(text, key)
    line_end = _line_end(text, colon)
    return f"{text[:colon]} {_scalar(value)}{text[colon:line_end]}{text[_line_end(text, end) :]}"


def _remove(text: str, path: tuple[str, ...]) -> str:
    parent = yaml_file.compose(text)
    for part in path[:-1]:
        pair = _pair(parent, part)
        parent = pair[1] if pair else None
    if parent is None or (pair := _pair(parent, path[-1])) is None:
        return text
    key, value = pair
    if _is_flow(parent):
        return _remove_in_flow(text, parent, parent.value.index(pair))
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    return text[:start] + text[_line_end(text, _pair_end(text, key, value)) + 1 :]


def _remove_in_flow(text: str, parent: Node, index: int) -> str:
    pairs = parent.value
    if index > 0:
        return text[: _pair_end(text, *pairs[index - 1])] + text[_pair_end(text, *pairs[index]) :]
    after = pairs[1][0].start_mark.index if len(pairs) > 1 else parent.end_mark.index - 1
    return text[: pairs[0][0].start_mark.index] + text[after:]


def _pair(node: Node | None, name: str) -> tuple[Node, Node] | None:
    if node is None or not _is_mapping(node):
        return None
    return next((pair for pair in node.value if pair[0].value == name), None)


def _is_mapping(node: Node) -> bool:
    from ruamel.yaml.nodes import MappingNode

    return isinstance(node, MappingNode)


def _is_flow(node: Node) -> bool:
    return bool(getattr(node, "flow_style", False))


def _is_block(node: Node) -> bool:
    return isinstance(node.value, list) and not _is_flow(node)


def _is_empty(node: Node) -> bool:
    """`section:` with nothing after it but comments, perhaps; its mark lies wherever the next key begins."""
    return bool(node.value == "" and node.start_mark.index == node.end_mark.index)


def _after_colon(text: str, key: Node) -> int:
    return text.index(":", key.end_mark.index) + 1


def _pair_end(text: str, key: Node, value: Node) -> int:
    return _after_colon(text, key) if _is_empty(value) else _end(text, value)


def _end(text: str, node: Node) -> int:
    """Just past the node's last visible character; a block collection's own mark lies after its comments."""
    if _is_block(node) and node.value:
        last = node.value[-1]
        return _pair_end(text, *last) if isinstance(last, tuple) else _end(text, last)
    start: int = node.start_mark.index
    return max(start, len(text[: node.end_mark.index].rstrip()))


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end


def _line_after(text: str, index: int, lines: str) -> str:
    end = _line_end(text, index)
    before = text[:end]
    newline = "" if not before or before.endswith("\n") else "\n"
    return f"{before}{newline}{lines}{text[end + 1 :]}"


def _block(name: str, value: JSON, column: int) -> str:
    pad = " " * column
    if isinstance(value, dict) and value:
        return f"{pad}{_scalar(name)}:\n{_children(value, column + _INDENT)}"
    return f"{pad}{_scalar(name)}: {_scalar(value)}\n"


def _children(value: JSONObject, column: int) -> str:
    return "".join(_block(name, item, column) for name, item in value.items())


def _scalar(value: JSON) -> str:
    """A value on one line, plain where plain text means the same."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml_file.parse_scalar(value, "") == value:
        return value
    return _flow(value)


def _flow(value: JSON) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item) if ":" not in str(item) else _flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(name)}: {_flow(item)}" for name, item in value.items()) + "}"
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
