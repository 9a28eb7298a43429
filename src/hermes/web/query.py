"""The query box: conditions of the command line's `--where` and words of a full-text search, in one line.

`reward>=0.5 model~qwen "connection refused"` has two conditions and a phrase. A condition is FIELD OPERATOR
VALUE without spaces; a value with spaces is in quotes. Everything else is searched for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlencode

from hermes.data.where import FIELDS, WITHOUT_TRAINING, Condition, parse
from hermes.errors import UsageError
from hermes.store.browse.columns import SqlCondition
from hermes.web.responses import PageError

DEFAULT_QUERY = WITHOUT_TRAINING
"""The query of an address without one."""
_MAX_CONDITIONS = 20
_PART = re.compile(
    r'(?P<field>[a-z_]+(?:\.[^\s<>=!~"]+)?)(?P<operator><=|>=|!=|=|<|>|~)(?:"(?P<quoted>[^"]*)"|(?P<value>\S*))'
    r'|"(?P<phrase>[^"]*)"'
    r"|(?P<word>\S+)"
)


@dataclass(frozen=True, slots=True)
class TrajectoryQuery:
    text: str
    """As it was typed."""
    conditions: tuple[Condition, ...] = ()
    words: str = ""
    """The words that are searched for."""

    @property
    def sql(self) -> list[SqlCondition]:
        return [condition.sql for condition in self.conditions]

    def without(self, condition: Condition) -> str:
        """The query string of the same query without one condition."""
        parts = [_written(entry) for entry in self.conditions if entry is not condition]
        return urlencode({"q": " ".join([*parts, self.words]).strip()})

    def adding(self, condition: str) -> str:
        return urlencode({"q": f"{self.text} {condition}".strip()})


def parse_query(text: str) -> TrajectoryQuery:
    """PageError (400) names the part that is no condition."""
    conditions: list[Condition] = []
    words: list[str] = []
    for match in _PART.finditer(text):
        if match["field"] is not None:
            conditions.append(_condition(match))
        else:
            words.append(match["word"] if match["phrase"] is None else match["phrase"])
    if len(conditions) > _MAX_CONDITIONS:
        raise PageError(
            400, f"the query has {len(conditions)} conditions", f"At most {_MAX_CONDITIONS} are taken."
        )
    return TrajectoryQuery(text, tuple(conditions), " ".join(words).strip())


def field_names() -> list[str]:
    return [*FIELDS, "metadata."]


def _condition(match: re.Match[str]) -> Condition:
    value = match["value"] if match["quoted"] is None else match["quoted"]
    try:
        return parse(f"{match['field']}{match['operator']}{value}")
    except UsageError as error:
        hint = f"{error.hint}. " if error.hint else ""
        raise PageError(
            400, error.message, f'{hint}To search for the text itself, put it in quotes: "{match[0][:80]}".'
        ) from error


def _written(condition: Condition) -> str:
    value = f'"{condition.value}"' if re.search(r"\s", condition.value) else condition.value
    return f"{condition.field}{condition.operator}{value}"
