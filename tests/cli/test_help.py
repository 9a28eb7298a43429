"""The help of every command: full sentences, no gaps, examples that parse, -h everywhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from hermes.cli.examples import EXAMPLES
from hermes.cli.main import COMMANDS, cli
from hermes.cli.options import RenamedOption

FRAGMENTS = ("Of ", "Or ", "Or: ", "Per ", "Like ", "Beside ", "Default: ", "With --")


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield from _with_subcommands(name, command)


def _with_subcommands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    for subcommand in getattr(command, "commands", {}).values():
        yield from _with_subcommands(f"{name} {subcommand.name}", subcommand)


ALL = dict(commands())


def shown_options(command: click.Command) -> Iterator[click.Option]:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield parameter


def test_every_option_says_what_it_does_in_words_that_stand_alone() -> None:
    silent = [
        f"{name} {option.opts[0]}"
        for name, command in ALL.items()
        for option in shown_options(command)
        if not option.help
    ]
    assert silent == []
    fragments = [
        f"{name} {option.opts[0]}: {option.help}"
        for name, command in ALL.items()
        for option in shown_options(command)
        if option.help and option.help.startswith(FRAGMENTS)
    ]
    assert fragments == []


def test_every_command_answers_to_h_and_its_summary_is_not_cut() -> None:
    for name, command in ALL.items():
        done = CliRunner().invoke(cli, [*name.split(), "-h"], prog_name="hermes", terminal_width=80)
        assert done.exit_code == 0, (name, done.output)
        assert [line for line in done.output.splitlines() if len(line) > 80] == [], name
        assert "Usage: hermes" in done.output, name
        assert "\\b" not in done.output, (name, "a mark of click's is shown")
        assert command.help, name
        for subcommand in getattr(command, "commands", {}).values():
            summary = subcommand.get_short_help_str(limit=200)
            assert subcommand.hidden or summary.split()[-1] in done.output, (name, subcommand.name, summary)
            assert not summary.endswith("..."), (name, subcommand.name, summary)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example(name: str) -> None:
    done = CliRunner().invoke(cli, [name, "-h"], prog_name="hermes")
    assert re.search(rf"^ .*hermes {name}", done.output, re.MULTILINE), done.output


def test_examples_parse() -> None:
    for name, lines in EXAMPLES.items():
        assert name in ALL, name
        for line in lines:
            words = shlex.split(line)
            assert words[0] == "hermes" and line.startswith(f"hermes {name.partition(' ')[0]}"), line
            _parse(cli, words[1:], line)


def _parse(group: click.Group, words: list[str], line: str) -> None:
    """Parses as the command would, one level at a time; nothing is run."""
    context = click.Context(group, token_normalize_func=lambda token: token.replace("_", "-"))
    command = group.get_command(context, words[0])
    if command is None:
        assert " " in words[0] or group.name == "rate", line
        return
    if isinstance(command, click.Group) and len(words) > 1 and not words[1].startswith("-"):
        _parse(command, words[1:], line)
        return
    try:
        command.make_context(words[0], words[1:], parent=context)
    except click.BadParameter as error:
        assert "does not exist" in error.message, (line, error.message)  # a file of the example


FLAGS_OF_THINGS = {
    "--out": "--output",
    "--url": "--service, or --base-url of a server of models",
    "--toolset": "--toolsets",
    "--steps": "--num-steps",
    "--environments": "--env-replicas",
    "--environment": "--env",
    "--max-iterations": "--max-turns",
    "--endpoint": "--base-url",
    "--server": "--service",
    "--force-yes": "--yes",
}
"""A second name of a thing → the flag that it has in every command."""


def test_the_same_thing_has_the_same_flag_in_every_command() -> None:
    second_names = [
        f"hermes {name} {flag}: {FLAGS_OF_THINGS[flag]}"
        for name, command in ALL.items()
        for option in shown_options(command)
        for flag in (option.opts[:1] if isinstance(option, RenamedOption) else option.opts)
        if flag in FLAGS_OF_THINGS
    ]
    assert second_names == []


def test_commands_about_the_selected_environment_can_select_it() -> None:
    for name in ("config", "preflight", "start", "sweep", "test"):
        flags = {flag for option in ALL[f"rl {name}"].params for flag in option.opts}
        assert "--env" in flags and "--json" in flags, name


def test_completion_scripts_and_versions() -> None:
    runner = CliRunner()
    for shell in ("zsh", "fish"):  # bash's script asks the installed bash for its version
        done = runner.invoke(cli, ["completion", shell], prog_name="hermes")
        assert done.exit_code == 0 and "_HERMES_COMPLETE" in done.output
    done = runner.invoke(cli, ["--version"], prog_name="hermes")
    assert done.output.startswith("hermes, version ")
    assert "Python 3" in done.output and "SQLite 3" in done.output and "torch" in done.output


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["trajectorys"], "trajectories"),
        (["trajectories", "lst"], "list"),
        (["batch", "stats"], "status"),
        (["config", "sow"], "show"),
        (["train", "sff"], "sft"),
        (["rl", "prefligth"], "preflight"),
        (["trajectories", "list", "--limt", "3"], "--limit"),
        (["export", "--format", "sharegtp", "--output", "x.jsonl"], "sharegpt"),
        (["trajectories", "list", "--source", "chta"], "chat"),
        (["trajectories", "list", "--outcome", "complted"], "completed"),
    ],
)
def test_a_slip_is_answered_with_the_nearest_name(arguments: list[str], suggestion: str) -> None:
    done = CliRunner().invoke(cli, arguments, prog_name="hermes")
    assert done.exit_code != 0
    shown = done.output + str(getattr(done.exception, "hint", ""))
    assert f"id you mean '{suggestion}'" in shown or f"id you mean {suggestion}" in shown, shown
