"""What several commands share: which trajectories, how to print, stored variables for their libraries."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.store import Filter

_AGE = re.compile(r"(\d+)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_FILTERS = (
    click.option("--model", help="Model, as provider/name."),
    click.option("--tool", help="A tool that was called."),
    click.option("--outcome", "stop_reason", help="completed, error, max_turns, cut, running …"),
    click.option("--source", help="chat, query, batch, env, delegate or import."),
    click.option("--run", "run_id", help="Batch or training run."),
    click.option("--session", "session_id", help="Chat session."),
    click.option("--min-reward", type=float),
    click.option("--max-reward", type=float),
    click.option("--min-rating", type=float, help="1 to 5; good counts as 5, bad as 1."),
    click.option("--max-rating", type=float),
    click.option("--since", help="Date (2026-11-01), time, or age (30m, 12h, 7d, 2w)."),
    click.option("--until", help="Like --since."),
    click.option("--text", help="Words that all occur in one message."),
)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the filters; the command receives them as keyword arguments for `build_filter`."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def stored_variables(command: Callable[..., Any]) -> Callable[..., Any]:
    """For commands whose libraries read the process environment: `.env` is exported before they run."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        from hermes.config.environment import export_stored

        export_stored()
        return command(*arguments, **options)

    return run


def build_filter(*, since: str | None, until: str | None, **conditions: Any) -> Filter:
    from hermes.store import Filter

    return Filter(
        since_ms=_moment_ms(since) if since else None,
        until_ms=_moment_ms(until) if until else None,
        **conditions,
    )


def _moment_ms(text: str) -> int:
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
