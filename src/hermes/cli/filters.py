"""The options that say which stored trajectories a command is about."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from hermes.config.option import option
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.data.export.select import TrajectorySelection
    from hermes.store import Filter

_AGE = re.compile(r"(\d+)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class FilterOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    model: str | None = option(None, "Model, as provider/name.")
    tool: str | None = option(None, "A tool that was called.")
    stop_reason: str | None = option(None, "completed, error, max_turns, cut, running …", "--outcome")
    source: str | None = option(None, "chat, query, batch, env, delegate, import or record.")
    run_id: str | None = option(None, "Batch or training run.", "--run")
    session_id: str | None = option(None, "Chat session.", "--session")
    agent: str | None = option(None, "Recorded program: claude-code, codex, opencode, pi …")
    min_reward: float | None = option(None, "Lowest latest reward.")
    max_reward: float | None = option(None, "Highest latest reward.")
    min_rating: float | None = option(None, "Lowest rating, 1 to 5; good counts as 5, bad as 1.")
    max_rating: float | None = option(None, "Highest rating, on the scale of --min-rating.")
    since: str | None = option(None, "Earliest date (2026-11-01), time, or age (30m, 12h, 7d, 2w).")
    until: str | None = option(None, "Latest date, time or age; written like --since.")
    text: str | None = option(None, "Words that all occur in one message.")

    def build(self, *, refuse_unknown: bool = False) -> Filter:
        """The store's filter; slips in its names are reported, or with `refuse_unknown` a UsageError."""
        from hermes.cli.slips import check_words, report_unknown_names
        from hermes.store import Filter

        conditions = self.model_dump(exclude={"since", "until"})
        filters = Filter(
            since_ms=_parse_time_ms(self.since) if self.since else None,
            until_ms=_parse_time_ms(self.until) if self.until else None,
            **conditions,
        )
        check_words(filters)
        report_unknown_names(filters, refuse=refuse_unknown)
        return filters

    def selection(self, *, only_completed: bool) -> TrajectorySelection:
        from hermes.data.export.select import TrajectorySelection

        return TrajectorySelection(self.build(), only_completed=only_completed)


def _parse_time_ms(text: str) -> int:
    age = _AGE.fullmatch(text)
    try:
        if age:
            moment = datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
        else:
            moment = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"'{text}' is not a time", "write 2026-11-01, 2026-11-01T14:30 or an age such as 7d"
        ) from error
    return int(moment.timestamp() * 1000)
