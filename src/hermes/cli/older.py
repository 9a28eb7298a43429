"""Runs command lines of the scripts of hermes-agent as `hermes` commands.

Those scripts pass a value to switches (`--resume=True`, `--dry_run False`), and batch_runner has four flags
for OpenRouter's routing. Everything else is passed unchanged: underscores in flags are accepted everywhere.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence

import click

_VALUES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SWITCH = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)


_ROUTING = {
    "providers-allowed": "only",
    "providers-ignored": "ignore",
    "providers-order": "order",
    "provider-sort": "sort",
}
"""Flags of batch_runner, and the keys of OpenRouter's `provider` object that they set."""


def run(*command: str) -> None:
    """Runs `hermes COMMAND` with the arguments of this process."""
    from hermes.cli.main import cli, main

    group = cli.get_command(click.Context(cli), command[0])
    assert group is not None, command
    sys.argv[1:] = [*command, *convert_switches(sys.argv[1:], _switches([group]))]
    main()


def batch_runner() -> None:
    """`batch_runner`, which is `hermes batch`."""
    sys.argv[1:] = convert_routing(sys.argv[1:])
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


def convert_routing(arguments: Sequence[str]) -> list[str]:
    """The arguments with the flags for routing as one `--providers`."""
    words, converted, routing = list(arguments), [], {}
    while words:
        word = words.pop(0)
        match = _SWITCH.fullmatch(word)
        key = _ROUTING.get(match[1].replace("_", "-")) if match else None
        value = None if match is None else match[2]
        if key is None or (value is None and not words):
            converted.append(word)
            continue
        value = words.pop(0) if value is None else value
        routing[key] = value if key == "sort" else [name.strip() for name in value.split(",")]
    return [*converted, f"--providers={json.dumps(routing)}"] if routing else converted


def _switches(commands: Iterable[click.Command]) -> frozenset[str]:
    """The flags without a value of the commands and their subcommands, with dashes."""
    names: set[str] = set()
    for command in commands:
        options = (param for param in command.params if isinstance(param, click.Option) and param.is_flag)
        names |= {name.removeprefix("--") for option in options for name in option.opts}
        if isinstance(command, click.Group):
            names |= _switches(command.commands.values())
    return frozenset(names)
