"""The description of a format, used by export, import, Parquet and the documentation.

A format is plain data and pure functions: `write` turns one unit (a trajectory with its verdicts, or a
preference pair) into rows, `read` turns a row back. What survives writing and reading is stated in
`keeps` and tested; the rest is in `loses` and stays in the store, under the row's id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from hermes.core import JSONObject
from hermes.data.example import Example


class Column(NamedTuple):
    """One field of a row, and its type in Parquet and Arrow."""

    name: str
    kind: str
    """A key of hermes.data.export.table.KINDS."""
    meaning: str


class Unit(StrEnum):
    """The arguments of one call of `write`."""

    TRAJECTORY = "trajectory"
    PAIR = "pair"


class ToolCallStyle(StrEnum):
    """How tool calls, results and thinking are written where the format leaves it open."""

    STRUCTURED = "structured"
    """As fields, for models whose chat template supports tools."""
    TEXT = "text"
    """As text in the Hermes dialect, for models whose template does not (the bundled one)."""


class Thinking(StrEnum):
    """Which thinking of earlier turns the rows of training formats show."""

    SEEN = "seen"
    """The messages that the model was shown; where that does not grow, a trajectory becomes several rows."""
    ALL = "all"
    """All, whatever the model was shown: one row a trajectory."""
    NONE = "none"
    """None: each answer has its own thinking and no earlier one, as if nothing had been shown. For records
    that do not say what was: imported ones, and those of earlier versions."""


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    version: int
    """Raised when a row of the same name would no longer be read the same way."""
    summary: str
    columns: tuple[Column, ...]
    write: Callable[[Any, ToolCallStyle], Iterable[JSONObject]]
    """Rows of one unit; `UnfitError` if it has no place in this format."""
    keeps: tuple[str, ...]
    """The parts that a row keeps exactly; all of it survives writing and reading."""
    loses: tuple[str, ...]
    """The parts that a row does not hold, or not exactly."""
    read: Callable[[JSONObject], Example] | None = None
    """None: rows of this format cannot be turned back into a trajectory."""
    unit: Unit = Unit.TRAJECTORY
    whole: bool = False
    """A row is the record itself: of any version and any end, and every text to the last code unit."""
    table_row: Callable[[JSONObject], JSONObject] | None = None
    """A row in the types of the columns, where they differ from those of the JSON row."""
    lines: Callable[[JSONObject], list[JSONObject]] | None = None
    """For formats of one file per conversation: the lines of that file."""


class BadRowError(ValueError):
    """A row that is not of the format; the message names the field and the problem."""


def field(row: JSONObject, name: str, kind: type | tuple[type, ...]) -> Any:
    """A field that must be there and of this type."""
    if name not in row:
        raise BadRowError(f"'{name}' is missing")
    value = row[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadRowError(f"'{name}' is {type(value).__name__}")
    return value
