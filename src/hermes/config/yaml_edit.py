"""Changes to one key of a YAML text that keep its comments, order and quotes.

The text goes through ruamel.yaml's round trip. Each result is parsed again and compared with the data that
the change should have produced; a file that does not survive this (aliases, merge keys) is refused, never
half edited. Not promised: the bytes of unusual layouts, such as two different indentations in one file.

ruamel.yaml attaches comment lines to the value that precedes them. So the comments after the last value of a
section are moved when a key is added behind it, and kept when that value is removed.
"""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from hermes.config import yaml_file
from hermes.core import JSON, JSONObject
from hermes.errors import ConfigError

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.constructor import RoundTripConstructor
    from ruamel.yaml.tokens import CommentToken

    Collection: TypeAlias = CommentedMap | CommentedSeq

_LINE_WIDTH = 1 << 30
"""No line is ever broken."""
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+-]*(:[A-Za-z0-9_./@+-]+)*")
"""Texts that need no quotes, unless they mean something else (`1`, `true`): ruamel.yaml quotes those."""


def with_value(text: str, path: tuple[str, ...], value: JSON, where: str) -> str:
    """The text with the key set. Sections on the way are created; a mapping is written as a block."""
    expected = _data(text, where)
    section = expected
    for part in path[:-1]:
        if not isinstance(section.get(part), dict):
            section[part] = {}
        section = section[part]
    section[path[-1]] = value
    return _verified(_set(text, path, value), expected, where)


def without(text: str, path: tuple[str, ...], where: str) -> str:
    """The text less the key, and less the sections that would be left empty; unchanged if it is not there."""
    expected = _data(text, where)
    sections: list[JSONObject] = [expected]
    for part in path[:-1]:
        section = sections[-1].get(part)
        if not isinstance(section, dict):
            return text
        sections.append(section)
    if path[-1] not in sections[-1]:
        return text
    depth = len(path) - 1
    while depth > 0 and len(sections[depth]) == 1:
        depth -= 1
    del sections[depth][path[depth]]
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
    yaml, root = _load(text)
    if root is None:
        newline = "\n" if text and not text.endswith("\n") else ""
        yaml.explicit_start = False
        return text + newline + _dump(yaml, _node(_nested(path, value)))
    section, depth = root, 0
    while depth < len(path) - 1 and _is_mapping(section.get(path[depth])):
        section = section[path[depth]]
        depth += 1
    key, node = _node(path[depth]), _node(_nested(path[depth + 1 :], value))
    if section.fa.flow_style():
        section[key] = node
        return _dump(yaml, root)
    previous = key if key in section else next(reversed(section))
    below = _cut_comments(section, previous)
    beside = _comment(section, key)
    section[key] = node
    if key in section.ca.items:
        section.ca.items[key][2:] = [None, None]
    if beside is not None and (first_line := beside.value.partition("\n")[0]):
        beside.value = first_line + "\n"
        _set_comment(section, key, beside)
    _append_comment(*_last_value(section, key), below)
    return _dump(yaml, root)


def _remove(text: str, path: tuple[str, ...]) -> str:
    yaml, root = _load(text)
    if root is None:
        return text
    parent = section = root
    for part in path[:-1]:
        parent, section = section, section[part]
    key = path[-1]
    lines = "" if section.fa.flow_style() else _comment_above(section, key) + _cut_comments(section, key)
    keys = list(section)
    index = keys.index(key)
    del section[key]
    section.ca.items.pop(key, None)
    if index > 0:
        _append_comment(*_last_value(section, keys[index - 1]), lines)
    elif section is not root:
        _append_comment(parent, path[-2], lines)
    elif section:
        _set_start_comment(root, _start_comment(root) + lines)
    else:
        return _start_comment(root) + lines + _text(root.ca.end)
    return _dump(yaml, root)


def _load(text: str) -> tuple[YAML, CommentedMap | None]:
    """The document, and a dumper that writes it with the indentation that it has."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.Constructor = _exact_constructor()
    yaml.preserve_quotes = True
    yaml.width = _LINE_WIDTH
    yaml.explicit_start = text.startswith("---")
    root: CommentedMap | None = yaml.load(text)
    if root is not None:
        blocks = [node for node in root.values() if _is_block(node)]
        sections = [block for block in blocks if _is_mapping(block)]
        lists = [block for block in blocks if _is_list(block)]
        offset = lists[0].lc.col if lists else 0
        yaml.indent(mapping=sections[0].lc.col if sections else 2, sequence=offset + 2, offset=offset)
    return yaml, root


def _exact_constructor() -> type[RoundTripConstructor]:
    """ruamel.yaml keeps the spelling of a float, but changes some large ones when it writes them again."""
    from ruamel.yaml.constructor import RoundTripConstructor

    class ExactConstructor(RoundTripConstructor):
        def construct_yaml_float(self, node: Any) -> Any:
            number = super().construct_yaml_float(node)
            return float(number) if "e" in node.value.lower() else number

    ExactConstructor.add_constructor("tag:yaml.org,2002:float", ExactConstructor.construct_yaml_float)
    return ExactConstructor


def _dump(yaml: YAML, root: CommentedMap) -> str:
    stream = io.StringIO()
    yaml.dump(root, stream)
    return stream.getvalue()


def _nested(path: tuple[str, ...], value: JSON) -> JSON:
    for part in reversed(path):
        value = {part: value}
    return value


def _node(value: JSON) -> Any:
    """The value as ruamel.yaml writes it: mappings as blocks, lists and texts on one line."""
    from ruamel.yaml.comments import CommentedMap, CommentedSeq
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, dict):
        return CommentedMap({_node(key): _node(member) for key, member in value.items()})
    if isinstance(value, list):
        items = CommentedSeq([_node(member) for member in value])
        items.fa.set_flow_style()
        return items
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return DoubleQuotedScalarString(value)
    return value


def _is_mapping(node: object) -> bool:
    """Whether it is a mapping that has a key."""
    from ruamel.yaml.comments import CommentedMap

    return isinstance(node, CommentedMap) and len(node) > 0


def _is_list(node: object) -> bool:
    from ruamel.yaml.comments import CommentedSeq

    return isinstance(node, CommentedSeq) and len(node) > 0


def _is_block(node: Any) -> bool:
    """Whether it is a collection of at least one item that is not in brackets or braces."""
    return (_is_mapping(node) or _is_list(node)) and not node.fa.flow_style()


def _is_block_text(node: object) -> bool:
    """Whether it is a `|` or `>` text, after which the line has ended already."""
    from ruamel.yaml.scalarstring import FoldedScalarString, LiteralScalarString

    return isinstance(node, LiteralScalarString | FoldedScalarString)


def _last_value(parent: Collection, key: str | int) -> tuple[Collection, str | int]:
    """Where the last value of a block is: its collection, and its key in it."""
    while _is_block(parent[key]):
        parent, key = _last_item(parent[key])
    return parent, key


def _last_item(block: Collection) -> tuple[Collection, str | int]:
    return block, next(reversed(block)) if _is_mapping(block) else len(block) - 1


def _comment(parent: Collection, key: str | int) -> CommentToken | None:
    """What follows the value: the rest of its line, and the comment lines below it."""
    comments = parent.ca.items.get(key)
    token: CommentToken | None = comments[2 if _is_mapping(parent) else 0] if comments else None
    return token


def _comment_above(section: CommentedMap, key: str) -> str:
    """The comment lines above a key that follows a collection in brackets or braces."""
    comments = section.ca.items.get(key)
    return _text(comments[1]) if comments else ""


def _set_comment(parent: Collection, key: str | int, token: CommentToken | None) -> None:
    comments = parent.ca.items.setdefault(key, [None, None, None, None])
    comments[2 if _is_mapping(parent) else 0] = token


def _cut_comments(parent: Collection, key: str | int) -> str:
    """Removes the comment lines below the value and returns them; a comment in its own line stays."""
    ends = ""
    while _is_block(parent[key]):
        parent, key = _last_item(parent[key])
        ends = _text(parent.ca.end) + ends
        parent.ca.end = []
    token = _comment(parent, key)
    if token is None:
        return ends
    beside, _, below = ("", "", token.value) if _is_block_text(parent[key]) else token.value.partition("\n")
    if beside:
        token.value = beside + "\n"
    else:
        _set_comment(parent, key, None)
    return below + ends


def _append_comment(parent: Collection, key: str | int, lines: str) -> None:
    from ruamel.yaml.error import CommentMark
    from ruamel.yaml.tokens import CommentToken

    if not lines:
        return
    token = _comment(parent, key)
    if token is None:
        line_end = "" if _is_block_text(parent[key]) else "\n"
        _set_comment(parent, key, CommentToken(line_end + lines, CommentMark(0)))
    else:
        token.value += lines


def _start_comment(root: CommentedMap) -> str:
    """The comment lines above the first key."""
    return _text(root.ca.comment[1]) if root.ca.comment else ""


def _set_start_comment(root: CommentedMap, lines: str) -> None:
    from ruamel.yaml.error import CommentMark
    from ruamel.yaml.tokens import CommentToken

    if lines:
        root.ca.comment = [None, [CommentToken(lines, CommentMark(0))]]


def _text(tokens: list[CommentToken] | None) -> str:
    return "".join(token.value for token in tokens or ())
