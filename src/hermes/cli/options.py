"""Parts of command lines that several commands share.

A command with many options declares them as a pydantic model (`model_options.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from hermes.errors import UsageError


class WholeSummaries(click.Group):
    """A group whose help wraps the summaries of its commands instead of cutting them."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        shown = [command for command in commands if command is not None and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(str(command.name), command.get_short_help_str(200)) for command in shown])


class CommandGroup(WholeSummaries):
    """A group that names the nearest command if there is none of the name typed.

    `former_names` of its commands are accepted and not listed.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.former_names: dict[str, str] = {}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.former_names.get(cmd_name, cmd_name))

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
        type=click.Path(path_type=Path),
        metavar="DIR",
        help=help_text,
    )


def add_options(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a command with click options, listed in this order by --help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


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
