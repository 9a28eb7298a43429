"""config.yaml as data with locations: YAML 1.2, safe types only, every key with its line and column.

Errors name `file:line:column` and never quote the file's values, which might be secrets pasted into the
wrong place. `limited_yaml` is for every YAML text that a stranger may have written: exceeding a limit on
depth or on what its aliases become is a YAML error with its place, as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hermes.core import JSON, JSONObject
from hermes.errors import ConfigError

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.nodes import Node


MAX_CHARS = 256_000
MAX_DEPTH = 64
MAX_MERGES = 200
"""The loader's time for `<<` grows with the square of their number."""
MAX_NODES = 20_000
"""Values of a file, each counted as often as aliases repeat it."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file."""

    data: JSONObject
    locations: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Path of a key → `file:line:column` of where it is written."""

    def location(self, path: Sequence[str | int]) -> str | None:
        """Where the key is written, or the nearest key around it."""
        for end in range(len(path), 0, -1):
            if (location := self.locations.get(tuple(str(part) for part in path[:end]))) is not None:
                return location
        return None


def parse(text: str, where: str) -> Document:
    """`where` names the file in errors. An empty file is an empty mapping."""
    locations: dict[tuple[str, ...], str] = {}
    data = _load(text, where, locations)
    if data is None:
        return Document({})
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected settings as 'key: value' lines", _repair(where))
    return Document(data, locations)


def parse_scalar(text: str, where: str) -> JSON:
    """One value, as it would be written in config.yaml."""
    return _load(text, where, {})


def _repair(where: str) -> str:
    """How to mend the file: the settings have a command, any other file is edited where it lies."""
    return "repair it with 'hermes config edit'" if Path(where).name == "config.yaml" else "repair it there"


def _load(text: str, where: str, locations: dict[tuple[str, ...], str]) -> JSON:
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    if len(text) > MAX_CHARS:
        raise ConfigError(f"{where}: more than {MAX_CHARS:,} characters are not read", _repair(where))
    yaml = limited_yaml()
    try:
        node = yaml.compose(text)
        if node is None:
            return None
        _check(node, (), where, locations, ())
        return yaml.constructor.construct_document(node)
    except MarkedYAMLError as error:
        raise _syntax_error(where, error) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{where}:{line}: a character that YAML does not allow", _repair(where)) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{where}: not readable as YAML ({type(error).__name__})", _repair(where)
        ) from error


def _check(
    node: Node,
    path: tuple[str, ...],
    where: str,
    locations: dict[tuple[str, ...], str],
    above: tuple[int, ...],
) -> None:
    """Refuses what JSON cannot hold (dates, sets, keys that are not text, cycles) and repeated keys."""
    from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

    if id(node) in above:
        raise ConfigError(f"{_location(where, node)}: an alias refers to a value around it", _repair(where))
    if isinstance(node, SequenceNode):
        for item in node.value:
            _check(item, path, where, locations, (*above, id(node)))
    elif isinstance(node, MappingNode):
        if _kind(node) != "map":
            raise ConfigError(f"{_location(where, node)}: unsupported kind of value", _repair(where))
        names: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or _kind(key) not in ("str", "merge"):
                raise ConfigError(f"{_location(where, key)}: expected a name as key", "put the key in quotes")
            inner = (*path, key.value)
            if key.value in names:
                raise ConfigError(
                    f"{_location(where, key)}: the key '{'.'.join(inner)}' is set twice",
                    "keep one of the two",
                )
            names.add(key.value)
            locations.setdefault(inner, _location(where, key))
            _check(value, inner, where, locations, (*above, id(node)))
    elif _kind(node) in ("timestamp", "binary"):
        raise ConfigError(
            f"{_location(where, node)}: '{'.'.join(path)}' is a {_kind(node)}", "put the value in quotes"
        )


def _kind(node: Node) -> str:
    return str(node.tag).rpartition(":")[2]


def _location(where: str, node: Node) -> str:
    return f"{where}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _syntax_error(where: str, error: MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    location = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
    reason = ", ".join(str(part) for part in (error.context, error.problem) if part)
    return ConfigError(f"{location}: {reason}", _repair(where))


def limited_yaml(kind: Literal["safe", "rt"] = "safe") -> YAML:
    from ruamel.yaml import YAML
    from ruamel.yaml.composer import Composer, ComposerError
    from ruamel.yaml.events import AliasEvent

    class LimitedComposer(Composer):
        def __init__(self, loader: Any = None) -> None:
            super().__init__(loader)
            self._depth = self._size = self._merges = 0
            self._sizes: dict[int, int] = {}

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.parser.peek_event()
            size_before = self._size
            self._depth += 1
            if self._depth > MAX_DEPTH:
                self._fail(f"more than {MAX_DEPTH} levels of values in values", event)
            node = super().compose_node(parent, index)
            self._depth -= 1
            # An alias in its own value has no size yet; who walks the values has to refuse it.
            self._size += self._sizes.get(id(node), 1) if isinstance(event, AliasEvent) else 1
            self._sizes.setdefault(id(node), self._size - size_before)
            if self._size > MAX_NODES:
                self._fail(f"more than {MAX_NODES:,} values, aliases counted as what they repeat", event)
            self._merges += getattr(node, "value", None) == "<<"
            if self._merges > MAX_MERGES:
                self._fail(f"more than {MAX_MERGES} merged mappings", event)
            return node

        def _fail(self, problem: str, event: Any) -> None:
            raise ComposerError(None, None, problem, event.start_mark)

    yaml = YAML(typ=kind, pure=True)
    yaml.Composer = LimitedComposer
    return yaml
