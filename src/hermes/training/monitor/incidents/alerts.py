"""Alert rules: conditions on the metrics of a run that a person wants to know about.

A rule is `METRIC < VALUE`, with `<=`, `>` or `>=`, and `for N` if it has to hold for N steps in a row; rules
are the setting `rl.alerts`. The trainer logs an alert when a rule begins to hold. Pages and commands find the
alerts of a run in its metrics, so that a new rule applies to runs of the past, too. A step without the metric
(not every step evaluates) changes nothing.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hermes.config.settings import ALERT_RULE
from hermes.core import JSONObject
from hermes.errors import UsageError

logger = logging.getLogger(__name__)

MAX_ALERTS = 1000
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class AlertRule:
    metric: str
    comparison: str
    limit: float
    steps: int = 1
    """Measurements in a row that it has to hold for."""

    @property
    def text(self) -> str:
        lasting = f" for {self.steps}" if self.steps > 1 else ""
        return f"{self.metric} {self.comparison} {self.limit:g}{lasting}"

    def holds(self, value: float) -> bool:
        return _COMPARE[self.comparison](value, self.limit)


@dataclass(frozen=True, slots=True)
class Alert:
    """A stretch of steps in which a rule held."""

    rule: AlertRule
    step: int
    """At which it had held for long enough."""
    last_step: int
    value: float
    """At `last_step`."""
    ongoing: bool
    """Whether it holds at the newest measurement."""

    def sentence(self) -> str:
        until = "" if self.step == self.last_step else f" to {self.last_step}"
        return f"{self.rule.text}: {self.value:.4g} (step {self.step}{until})"

    def to_json(self) -> JSONObject:
        return {**asdict(self), "rule": self.rule.text}


def parse_rule(text: str) -> AlertRule:
    match = ALERT_RULE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"'{text[:80]}' is no alert rule",
            "METRIC > VALUE, or METRIC < VALUE for STEPS",
        )
    metric, comparison, limit, steps = match.groups()
    return AlertRule(metric, comparison, float(limit), int(steps or 1))


class AlertWatch:
    """Takes the metrics of one step after the other. It keeps the newest MAX_ALERTS of a rule."""

    def __init__(self, rules: Sequence[AlertRule]) -> None:
        self.rules = tuple(rules)
        self._lasting = dict.fromkeys(self.rules, 0)
        self._alerts: dict[AlertRule, list[Alert]] = {rule: [] for rule in self.rules}

    @property
    def alerts(self) -> list[Alert]:
        """In the order of their first steps."""
        return sorted(
            (alert for alerts in self._alerts.values() for alert in alerts), key=lambda alert: alert.step
        )

    def add(self, step: int, values: Mapping[str, Any]) -> list[Alert]:
        """The alerts that begin at this step."""
        begun = []
        for rule in self.rules:
            value = values.get(rule.metric)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            alerts = self._alerts[rule]
            if not rule.holds(value):
                self._lasting[rule] = 0
                alerts[-1:] = [replace(alert, ongoing=False) for alert in alerts[-1:]]
                continue
            self._lasting[rule] += 1
            if self._lasting[rule] == rule.steps:
                begun.append(Alert(rule, step, step, float(value), ongoing=True))
                alerts.append(begun[-1])
                del alerts[:-MAX_ALERTS]
            elif self._lasting[rule] > rule.steps:
                alerts[-1] = replace(alerts[-1], last_step=step, value=float(value))
        return begun


def find_alerts(rows: Iterable[Mapping[str, Any]], rules: Sequence[AlertRule]) -> list[Alert]:
    """The alerts of a run, from its metrics."""
    watch = AlertWatch(rules)
    for row in rows:
        watch.add(row["step"], row)
    return watch.alerts


class AlertSink:
    """Logs an alert when its rule begins to hold."""

    name = "alerts"

    def __init__(self, rules: Sequence[AlertRule]) -> None:
        self._watch = AlertWatch(rules)

    def rewind(self, step: int) -> None:
        """The steps after `step` are made again, and may alert again."""
        self._watch = AlertWatch(self._watch.rules)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for alert in self._watch.add(step, values):
            logger.warning("alert: %s", alert.sentence())

    def close(self) -> None:
        """Nothing to do: it holds no file."""
