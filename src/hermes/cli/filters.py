"""The options that say which stored trajectories a command is about."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from hermes.config.option import Options, option
from hermes.config.paths import db_path, home
from hermes.core import Source, StopReason
from hermes.core.names import did_you_mean, nearest
from hermes.errors import UsageError
from hermes.store import Filter, Reader

if TYPE_CHECKING:
    from hermes.data.export.select import TrajectorySelection

_AGE = re.compile(r"(\d+)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class FilterOptions(Options):
    model: str | None = option(None, "Model, as provider/name.")
    agent: str | None = option(None, "Whose session it is: claude-code, codex, opencode, pi …")
    tool: str | None = option(None, "A tool that was called.")
    stop_reason: str | None = option(None, "completed, error, max_turns, cut, running …", "--outcome")
    source: str | None = option(None, "chat, query, batch, env, delegate, import or record.")
    run_id: str | None = option(None, "Batch or training run.", "--run")
    session_id: str | None = option(None, "Chat session.", "--session")
    min_reward: float | None = option(None, "Lowest latest reward.")
    max_reward: float | None = option(None, "Highest latest reward.")
    min_rating: float | None = option(None, "Lowest rating, 1 to 5; good counts as 5, bad as 1.")
    max_rating: float | None = option(None, "Highest rating, on the scale of --min-rating.")
    since: str | None = option(None, "Earliest date (2026-11-01), time, or age (30m, 12h, 7d, 2w).")
    until: str | None = option(None, "Latest date, time or age; written like --since.")
    text: str | None = option(None, "Words that all occur in one message.")

    def build(self, *, refuse_unknown: bool = False) -> Filter:
        """The store's filter; slips in its names are reported, or with `refuse_unknown` a UsageError."""

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


def check_words(filters: Filter) -> None:
    """UsageError if the source or the outcome is a word that no trajectory can have."""
    sources = [source.value for source in Source]
    outcomes = [*(reason.value for reason in StopReason), "running"]
    for flag, word, words in (
        ("--source", filters.source, sources),
        ("--outcome", filters.stop_reason, outcomes),
    ):
        if word is not None and word not in words:
            raise UsageError(
                f"{flag}: no trajectory has '{word}'",
                did_you_mean(nearest(word, words), f"one of: {', '.join(words)}"),
            )


def report_unknown_names(filters: Filter, *, refuse: bool = False) -> None:
    """Prints a line for each run, model, agent and tool that no trajectory of the store has.

    `refuse`: UsageError instead, for a command to which nothing at all is of no use.
    """
    path = db_path(home())
    conditions = {
        "run": Filter(run_id=filters.run_id),
        "model": Filter(model=filters.model),
        "agent": Filter(agent=filters.agent),
        "tool": Filter(tool=filters.tool),
    }
    names = {
        "run": filters.run_id,
        "model": filters.model,
        "agent": filters.agent,
        "tool": filters.tool,
    }
    if not path.exists() and not refuse:
        return
    with Reader(path) as reader:
        for kind, name in names.items():
            if name is None or reader.summaries(conditions[kind], limit=1):
                continue
            candidates = reader.names(kind)
            hint = did_you_mean(nearest(name, candidates))
            if refuse:
                listing = (
                    f"there are: {', '.join(candidates[:8])}" if candidates else "nothing is recorded yet"
                )
                raise UsageError(f"no trajectory has the {kind} '{name}'", hint or listing)
            click.echo(f"no trajectory has the {kind} '{name}'{hint and f'; {hint}'}", err=True)
