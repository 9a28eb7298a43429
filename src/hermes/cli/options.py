"""Options that several commands share, and how a command's options become one typed object.

A command with many options declares a frozen dataclass whose fields are named like its click parameters and
builds it once with `make_options`; everything behind the command takes that object, never a dictionary of
flags.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from hermes.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import DataclassInstance

    from hermes.store import Filter

    Options = TypeVar("Options", bound=DataclassInstance)

_AGE = re.compile(r"(\d+)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class CommandGroup(click.Group):
    """A group that names the nearest command if there is none of the name typed."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from hermes.core.names import did_you_mean, nearest

            names = self.list_commands(ctx)
            hint = did_you_mean(nearest(name, names), f"there are: {', '.join(names)}")
            raise click.UsageError(f"no such command '{name}'; {hint}", ctx)
        return super().resolve_command(ctx, args)


class RenamedOption(click.Option):
    """An option whose former names are accepted and not listed: help shows the first name only."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names = self.opts
        self.opts = names[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


class DeviceChoice(click.Choice[str]):
    """auto, cpu or cuda; cuda:0 is cuda, and for another GPU the error says how it is chosen."""

    def __init__(self) -> None:
        super().__init__(("auto", "cpu", "cuda"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, number = str(value).partition(":")
        if kind == "cuda" and number.isdecimal() and int(number):
            self.fail(
                f"the first visible GPU is used, not '{value}'."
                f" Make that one the only visible GPU: CUDA_VISIBLE_DEVICES={number} and --device cuda.",
                param,
                ctx,
            )
        return super().convert("cuda" if value == "cuda:0" else value, param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def folder_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--output DIR, as the parameter `out`."""
    return click.option(
        "--output",
        "--out",
        "out",
        cls=RenamedOption,
        type=click.Path(path_type=pathlib.Path),
        metavar="DIR",
        help=help_text,
    )


_FILTERS = (
    click.option("--model", help="Model, as provider/name."),
    click.option("--tool", help="A tool that was called."),
    click.option("--outcome", "stop_reason", help="completed, error, max_turns, cut, running …"),
    click.option("--source", help="chat, query, batch, env, delegate or import."),
    click.option("--run", "run_id", help="Batch or training run."),
    click.option("--session", "session_id", help="Chat session."),
    click.option("--min-reward", type=float, help="Lowest latest reward."),
    click.option("--max-reward", type=float, help="Highest latest reward."),
    click.option("--min-rating", type=float, help="Lowest rating, 1 to 5; good counts as 5, bad as 1."),
    click.option("--max-rating", type=float, help="Highest rating, on the scale of --min-rating."),
    click.option("--since", help="Earliest date (2026-11-01), time, or age (30m, 12h, 7d, 2w)."),
    click.option("--until", help="Latest date, time or age; written like --since."),
    click.option("--text", help="Words that all occur in one message."),
)


@dataclass(frozen=True)
class FilterOptions:
    """The options that `filter_options` adds: which stored trajectories a command is about."""

    model: str | None
    tool: str | None
    stop_reason: str | None
    source: str | None
    run_id: str | None
    session_id: str | None
    min_reward: float | None
    max_reward: float | None
    min_rating: float | None
    max_rating: float | None
    since: str | None
    until: str | None
    text: str | None

    def build(self) -> Filter:
        """The store's filter; slips in its names are reported."""
        from hermes.cli.slips import check_words, report_unknown_names
        from hermes.store import Filter

        conditions = asdict(self)
        since, until = conditions.pop("since"), conditions.pop("until")
        filters = Filter(
            since_ms=_parse_time_ms(since) if since else None,
            until_ms=_parse_time_ms(until) if until else None,
            **conditions,
        )
        check_words(filters)
        report_unknown_names(filters)
        return filters


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the filters; the command builds `FilterOptions` from them."""
    return add_options(*_FILTERS)(command)


def add_options(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a command with click options, listed in this order by --help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def make_options(options_class: type[Options], params: Mapping[str, Any]) -> Options:
    """Builds a command's options from click's parameters; parameters that the class lacks are ignored."""
    return options_class(**{field.name: params[field.name] for field in fields(options_class)})


def merge_below_command_line(
    ctx: click.Context, params: Mapping[str, Any], file_values: Mapping[str, Any]
) -> dict[str, Any]:
    """Click's parameters with the values of a file, except where the command line sets one itself.

    The keys of `file_values` must be parameter names.
    """
    merged = dict(params)
    parameters = {parameter.name: parameter for parameter in ctx.command.params}
    for name, value in file_values.items():
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            merged[name] = parameters[name].type_cast_value(ctx, value)
    return merged


def parameter_name(ctx: click.Context, path: Path, key: str, excluded: tuple[str, ...] = ()) -> str:
    """The parameter that a key of the YAML file at `path` sets; UsageError if the command has none."""
    name = key.replace("-", "_")
    if name in excluded or all(parameter.name != name for parameter in ctx.command.params):
        raise UsageError(
            f"{path}: unknown key '{key}'", f"the keys are the flags of 'hermes {ctx.command.name}'"
        )
    return name


def refuse_key(api_key: str | None) -> None:
    """UsageError if a key was passed on the command line."""
    if api_key:
        raise UsageError(
            "a key on the command line can be read by every user of this machine",
            "hermes config set OPENROUTER_API_KEY (asks for it), or set it in the environment",
        )


def stored_variables(command: Callable[..., Any]) -> Callable[..., Any]:
    """For commands whose libraries read the process environment: exports `.env` before the command runs."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        from hermes.config.environment import export_stored

        export_stored()
        return command(*arguments, **options)

    return run


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
