"""The check of `hermes …` command lines in texts, against the commands that exist. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from skills_check.shell_block import HermesCommands


def hermes_commands() -> HermesCommands:
    """The commands of this installation, for the check of skills."""
    from hermes.cli.main import cli
    from skills_check.shell_block import HermesCommands

    return HermesCommands(
        command_problem,
        frozenset(_all_flags(cli, click.Context(cli, info_name="hermes", **cli.context_settings))),
    )


def command_problem(words: list[str]) -> str | None:
    """What is wrong with the words after `hermes`; None: every command and option in them exists."""
    from hermes.cli.main import cli

    return _problem(cli, click.Context(cli, info_name="hermes", **cli.context_settings), words)


def _problem(command: click.Command, context: click.Context, words: list[str]) -> str | None:
    path = context.command_path
    options = _options(command, context)
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word == "--":
            return None
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            flag, has_value, _ = word.partition("=")
            option = options.get(flag.replace("_", "-"))
            if option is None and command.context_settings.get("ignore_unknown_options"):
                continue  # handed on: to 'hermes batch', or to an environment with settings of its own
            if option is None and isinstance(command, click.Group) and _hidden(command, context):
                return _default_problem(command, context, words[index - 1 :])
            if option is None:
                return _unknown_option(path, flag, options)
            if not option.is_flag and not has_value:
                problem = _choice_problem(path, option, words[index] if index < len(words) else None)
                if problem:
                    return problem
                index += option.nargs
        elif isinstance(command, click.Group):
            return _subcommand_problem(command, context, word, words[index:])
    return None


def _subcommand_problem(
    group: click.Group, context: click.Context, name: str, words: list[str]
) -> str | None:
    path = context.command_path
    names = group.list_commands(context)
    subcommand = group.get_command(context, name)
    if subcommand is not None:
        return _problem(subcommand, click.Context(subcommand, parent=context, info_name=name), words)
    if group.commands.keys() - set(names):
        return _default_problem(group, context, [name, *words])
    # Some groups take a sentence instead of a command; placeholders are in capitals or dots.
    if " " in name or name.isupper() or name in ("…", "..."):
        return None
    close = get_close_matches(name, names, n=1)
    return f"there is no command '{path} {name}'{f' (nearest: {close[0]})' if close else ''}"


def _hidden(group: click.Group, context: click.Context) -> set[str]:
    """Commands that the group's help does not show: it hands them what is no command of it."""
    listed = set(group.list_commands(context))
    return {name for name, command in group.commands.items() if command.hidden or name not in listed}


def _default_problem(group: click.Group, context: click.Context, words: list[str]) -> str | None:
    problems = [
        _problem(group.commands[name], click.Context(group.commands[name], parent=context), words)
        for name in sorted(_hidden(group, context))
    ]
    return None if None in problems else next(iter(problems), None)


def _unknown_option(path: str, flag: str, options: dict[str, click.Option]) -> str:
    close = get_close_matches(flag, options, n=1)
    return f"{path} has no option {flag}{f' (nearest: {close[0]})' if close else ''}"


def _choice_problem(path: str, option: click.Option, value: str | None) -> str | None:
    if value is None:
        return f"{path} {option.opts[0]} needs a value"
    if not isinstance(option.type, click.Choice) or value.isupper():
        return None
    choices = [str(choice) for choice in option.type.choices]
    if value in choices:
        return None
    return f"{path} {option.opts[0]} is one of {', '.join(choices)}, not '{value}'"


def _options(command: click.Command, context: click.Context) -> dict[str, click.Option]:
    return {
        name.replace("_", "-"): parameter
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def _all_flags(command: click.Command, context: click.Context) -> Iterator[str]:
    yield from _options(command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            if subcommand is not None:
                yield from _all_flags(subcommand, click.Context(subcommand, parent=context, info_name=name))
