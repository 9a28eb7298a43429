"""The commands of the command line that are no groups."""

from __future__ import annotations

from collections.abc import Iterator

import click


def leaf_commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, with its name, such as `env check`."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        subcommand = command.get_command(context, name)
        assert subcommand is not None
        yield from leaf_commands(subcommand, (*path, name))
