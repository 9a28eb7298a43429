"""Runs command lines of the scripts of hermes-agent as `hermes` commands.

Those scripts pass a value to switches (`--resume=True`, `--dry_run False`). Everything else is passed
unchanged: underscores in flags are accepted everywhere.
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
    sys.argv[1:] = [*command, *convert_switches(sys.argv[1:], _switches([group]))]
    main()


def batch_runner() -> None:
    """`batch_runner`, which is `hermes batch`."""
    run("batch")


def trajectory_compressor() -> None:
    """`trajectory_compressor`, which is `hermes compress`."""
    run("compress")


def rl_cli() -> None:
    """`rl_cli`, which is `hermes rl`."""
    run("rl")


def launch_training() -> None:
    """`launch_training`: trainer and inference server in one command."""
    run("train", "grpo", "--with-engine")


def download_weights() -> None:
    """`download_weights [RUN|tinker://…]` writes weights to ./checkpoints/<hash>/, which names the run."""
    run("rl", "weights", "--into", "checkpoints")


def convert_switches(arguments: Sequence[str], switches: frozenset[str]) -> list[str]:
    """The arguments with valued switches as plain ones; a false switch is left out."""
    words, converted = list(arguments), []
    while words:
        word = words.pop(0)
        match = _SWITCH.fullmatch(word)
        if match is None or match[1].replace("_", "-") not in switches:
            converted.append(word)
            continue
        value = match[2]
        if value is None and words and words[0].lower() in ("true", "false"):
            value = words.pop(0)
        state = True if value is None else _VALUES.get(value.lower())
        if state is None:
            converted.append(word)  # click reports the error
        elif state:
            converted.append(f"--{match[1]}")
    return converted


def _switches(commands: Iterable[click.Command]) -> frozenset[str]:
    """The flags without a value of the commands and their subcommands, with dashes."""
    names: set[str] = set()
    for command in commands:
        options = (param for param in command.params if isinstance(param, click.Option) and param.is_flag)
        names |= {name.removeprefix("--") for option in options for name in option.opts}
        if isinstance(command, click.Group):
            names |= _switches(command.commands.values())
    return frozenset(names)
