"""The fields of a condition (`turns<=10`, `metadata.split=train`) as SQL over trajectories and outcomes.

A comparison means what `hermes.data.where` says it means: text is compared without case, a value that is not
there satisfies nothing but `!=`, and comparing text by size satisfies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from hermes.core.json import JSON
from hermes.store.query import LATEST_RATING, LATEST_REWARD


class SqlCondition(NamedTuple):
    clause: str
    values: tuple[JSON, ...]
    prefilter: str = ""
    """A necessary condition that is found by one pass over a narrow table; empty: there is none."""
    prefilter_values: tuple[JSON, ...] = ()
    walks: bool = False
    """Whether it has to read more than one narrow row of every trajectory that it looks at."""


class _Column(NamedTuple):
    expression: str
    numeric: bool
    table: str = ""
    """`rewards` or `outcomes`, if a comparison can be decided in advance there."""
    own_column: str = ""
    """The column of that table."""


def _total(column: str, sum_of_steps: str) -> str:
    """A total of the outcome; of an unfinished trajectory, what its steps add up to so far."""
    return (
        "CASE WHEN o.trajectory IS NULL THEN"
        f" (SELECT {sum_of_steps} FROM steps s WHERE s.trajectory = t.seq) ELSE {column} END"
    )


_USAGE = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
_STEP_TOKENS = " + ".join(f"coalesce(sum(s.body ->> '$.usage.{name}'), 0)" for name in _USAGE)

_COLUMNS: Mapping[str, _Column] = MappingProxyType(
    {
        "id": _Column("t.id", False),
        "model": _Column("t.model", False),
        "source": _Column("t.source", False),
        "run": _Column("t.run_id", False),
        "task": _Column("t.task_id", False),
        "session": _Column("t.session_id", False),
        "agent": _Column("t.metadata ->> '$.agent'", False),
        "sample": _Column("t.sample_index", True),
        "outcome": _Column("coalesce(o.stop_reason, 'running')", False),
        "reward": _Column(LATEST_REWARD, True, "rewards", "value"),
        "rating": _Column(LATEST_RATING, True, "ratings"),
        "turns": _Column(
            _total("o.turns", "count(*) FILTER (WHERE s.kind = 'model')"), True, "outcomes", "turns"
        ),
        "messages": _Column(
            "(SELECT count(*) FROM steps s WHERE s.trajectory = t.seq AND NOT s.ephemeral)", True
        ),
        "tool_calls": _Column(
            _total("o.tool_calls", "count(*) FILTER (WHERE s.kind = 'tool')"), True, "outcomes", "tool_calls"
        ),
        "tool_errors": _Column(
            _total("o.tool_errors", "count(*) FILTER (WHERE s.kind = 'tool' AND NOT s.ok)"),
            True,
            "outcomes",
            "tool_errors",
        ),
        "tokens": _Column(
            _total(" + ".join(f"o.{name}" for name in _USAGE), _STEP_TOKENS),
            True,
            "outcomes",
            " + ".join(_USAGE),
        ),
        "cost_usd": _Column("o.cost_usd", True, "outcomes", "cost_usd"),
        "created_at_ms": _Column("t.created_at_ms", True),
    }
)
_OF_METADATA = ("agent", "agent_version")
"""Facts that have a name of their own."""
_NEVER = SqlCondition("0", ())


def sql_condition(field: str, operator: str, value: str) -> SqlCondition:
    """The condition as SQL. `field` and `operator` have been checked by `hermes.data.where.parse`."""
    condition = _sql_condition(_column(field), operator, value)
    return condition._replace(walks=field in ("messages", *_OF_METADATA) or field.startswith("metadata"))


def _sql_condition(column: _Column, operator: str, value: str) -> SqlCondition:
    if operator == "!=":
        equal = _equal(column, value)
        return SqlCondition(f"NOT coalesce({equal.clause}, 0)", equal.values)
    condition = _comparison(column, operator, value)
    if column.table == "ratings":
        return condition._replace(prefilter="t.seq IN (SELECT trajectory FROM ratings)")
    if column.expression.startswith("t.") and column.expression != "t.created_at_ms":
        narrow = f"t.seq IN (SELECT t.seq FROM trajectories t WHERE {condition.clause})"
        return condition._replace(prefilter=narrow, prefilter_values=condition.values)
    number = _number(value)
    if not column.table or operator == "~" or number is None:
        return condition
    unfinished = " UNION ALL SELECT trajectory FROM unfinished" if column.table == "outcomes" else ""
    selected = f"SELECT trajectory FROM {column.table} WHERE {column.own_column} {operator} ?{unfinished}"
    return condition._replace(prefilter=f"t.seq IN ({selected})", prefilter_values=(number,))


def _column(field: str) -> _Column:
    name, _, key = field.partition(".")
    if name in _OF_METADATA:
        key = name
    elif name != "metadata":
        return _COLUMNS[name]
    path = key.replace("'", "''")
    if '"' in path:
        return _Column("NULL", False)
    value = f"t.metadata ->> '$.\"{path}\"'"
    truth = f"json_type(t.metadata, '$.\"{path}\"')"
    return _Column(f"CASE {truth} WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE {value} END", False)


def _comparison(column: _Column, operator: str, value: str) -> SqlCondition:
    if operator == "=":
        return _equal(column, value)
    if operator == "~":
        return SqlCondition(f"instr({_lowered(column, value)}, ?) > 0", (value.lower(),))
    if column.numeric:  # a number or nothing, and nothing compares to nothing
        return SqlCondition(f"({column.expression}) {operator} ?", (float(value),))
    return SqlCondition(
        f"(typeof({column.expression}) IN ('integer', 'real') AND {column.expression} {operator} ?)",
        (float(value),),
    )


def _equal(column: _Column, value: str) -> SqlCondition:
    number = _number(value)
    if column.numeric:
        return _NEVER if number is None else SqlCondition(f"({column.expression}) = ?", (number,))
    text = SqlCondition(f"{_lowered(column, value)} = ?", (value.lower(),))
    if number is None:
        return text
    as_number = f"(typeof({column.expression}) IN ('integer', 'real') AND {column.expression} = ?)"
    return SqlCondition(f"({as_number} OR {text.clause})", (number, *text.values))


def _lowered(column: _Column, value: str) -> str:
    """SQLite's own lower() knows only ASCII, which is enough unless the value has more."""
    function = "lower" if value.isascii() else "lower_unicode"
    return f"{function}(CAST({column.expression} AS TEXT))"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
