"""Conditions that a person writes: `turns<=10`, `metadata.split=train`, `model~qwen`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from hermes.core import JSON, Source, StepKind
from hermes.data.example import Example
from hermes.errors import UsageError
from hermes.store.browse.columns import SqlCondition, sql_condition

WITHOUT_TRAINING = f"source!={Source.ENV.value}"
"""The default of lists and queues: a training run records more rollouts than a person ever reads."""
_SHAPE = re.compile(r"\s*([a-z_]+(?:\.[^\s<>=!~]+)?)\s*(<=|>=|!=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FIELDS: dict[str, Callable[[Example], JSON]] = {
    "id": lambda e: e.id,
    "model": lambda e: e.trajectory.header.model,
    "source": lambda e: e.trajectory.header.source.value,
    "run": lambda e: e.trajectory.header.run_id,
    "task": lambda e: e.trajectory.header.task_id,
    "session": lambda e: e.trajectory.header.session_id,
    "agent": lambda e: e.trajectory.header.metadata.get("agent"),
    "agent_version": lambda e: e.trajectory.header.metadata.get("agent_version"),
    "sample": lambda e: e.trajectory.header.sample_index,
    "outcome": lambda e: e.trajectory.outcome.stop_reason.value if e.trajectory.outcome else "running",
    "reward": lambda e: e.reward,
    "rating": lambda e: e.rating,
    "turns": lambda e: e.trajectory.turns,
    "messages": lambda e: len(e.messages),
    "tool_calls": lambda e: sum(step.kind is StepKind.TOOL for step in e.trajectory.steps),
    "tool_errors": lambda e: sum(bool(s.result and not s.result.ok) for s in e.trajectory.steps),
    "tokens": lambda e: e.trajectory.usage.total,
    "cost_usd": lambda e: e.trajectory.cost_usd,
    "created_at_ms": lambda e: e.trajectory.header.created_at_ms,
}
"""The fields of a condition; also `metadata.KEY`."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison; a value that is not there satisfies nothing but `!=`."""

    text: str
    field: str
    operator: str
    value: str

    def holds(self, example: Example) -> bool:
        value = self._value(example)
        if self.operator == "!=":
            return not _equal(value, self.value)
        if value is None:
            return False
        if self.operator == "=":
            return _equal(value, self.value)
        if self.operator == "~":
            return self.value.lower() in str(value).lower()
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return _COMPARE[self.operator](value, float(self.value))

    @property
    def sql(self) -> SqlCondition:
        """The same condition on the columns of the store."""
        return sql_condition(self.field, self.operator, self.value)

    def _value(self, example: Example) -> JSON:
        name, _, key = self.field.partition(".")
        if name == "metadata":
            return example.trajectory.header.metadata.get(key)
        return FIELDS[name](example)


def parse(text: str) -> Condition:
    match = _SHAPE.fullmatch(text)
    names = ", ".join([*FIELDS, "metadata.KEY"])
    if match is None or (match[1] not in FIELDS and not match[1].startswith("metadata.")):
        raise UsageError(
            f"'{text}' is not a condition", f"write FIELD=VALUE (or != < <= > >= ~); fields: {names}"
        )
    if match[2] in _COMPARE:
        try:
            float(match[3])
        except ValueError:
            raise UsageError(f"'{text}' compares with something that is no number") from None
    return Condition(text, match[1], match[2], match[3])


def _equal(value: JSON, text: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return value == float(text)
        except ValueError:
            return False
    return value is not None and str(value).lower() == text.lower()
