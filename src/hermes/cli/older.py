"""Command lines of the reference's scripts, as `hermes` commands read them.

Those scripts gave switches a value (`--resume=True`, `--dry_run False`). Everything else is written as it is:
underscores in flags are accepted everywhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

import click

_VALUES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SWITCH = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)


def run(*command: str) -> None:
    """Runs `hermes COMMAND` with the arguments of this process."""
    from hermes.cli.main import cli, main

    group = cli.get_command(click.Context(cli), command[0])
    assert group is not None, command
    sys.argv[1:] = [*command, *with_plain_switches(sys.argv[1:], _switches([group]))]
    main()


def with_plain_switches(arguments: Sequence[str], switches: frozenset[str]) -> list[str]:
    """The arguments with switches written as switches: one that is false is left out."""
    words, plain = list(arguments), []
    while words:
        word = words.pop(0)
        match = _SWITCH.fullmatch(word)
        if match is None or match[1].replace("_", "-") not in switches:
            plain.append(word)
            continue
        value = match[2]
        if value is None and words and words[0].lower() in ("true", "false"):
            value = words.pop(0)
        state = True if value is None else _VALUES.get(value.lower())
        if state is None:
            plain.append(word)  # click says what is wrong with it
        elif state:
            plain.append(f"--{match[1]}")
    return plain


def _switches(commands: Iterable[click.Command]) -> frozenset[str]:
    """The flags without a value, of the commands and those in them, with dashes."""
    names: set[str] = set()
    for command in commands:
        options = (param for param in command.params if isinstance(param, click.Option) and param.is_flag)
        names |= {name.removeprefix("--") for option in options for name in option.opts}
        if isinstance(command, click.Group):
            names |= _switches(command.commands.values())
    return frozenset(names)
