"""Tells a user who pressed Ctrl-C what was kept and how to go on.

Commands that stop in an orderly way print it themselves (`batch`, `compress`, `train` after its first step,
chat). Servers end with the exit code 0 and a line of STOPPED. For the others the group prints the line of
KEPT, or a general one, and the exit code is 130.
"""

from __future__ import annotations

from typing import Any

import click

EXIT_CODE = 130
_PATH = "hermes.command"
_GENERAL = "what was finished is kept; the same command can be given again"
_QUESTION = "what had arrived is recorded, unless --no-log: 'hermes trajectories show last'"
KEPT: dict[str, str] = {
    "bench": "finished samples are kept, and the same command continues with the others",
    "env process": "groups that were written are kept; the same command continues",
    "import": "imported trajectories are kept; the same command imports the others, and none twice",
    "improve": "ratings are as before; 'hermes policy list' shows which policy is current",
    "quickstart": "what was made is kept in the quickstart's folder; the next quickstart starts from the "
    "beginning, in a folder of its own",
    "rate": "ratings are kept; the same command rates the others",
    "rl agent": "the conversation is recorded so far; its runs continue: 'hermes rl status --all'",
    "rl start": "if it printed no run id, no run was started; 'hermes rl status --all' lists those that were",
    "rl sweep": "its runs are stopped and kept ('hermes rl status --all'); 'hermes rl resume RUN' goes on",
    "train": "no step was made; the same command starts again, and with --name RUN it resumes a run",
}
"""By command, or by its group, where the general line does not say how to go on."""

STOPPED: dict[str, str] = {
    "api": "acknowledged groups are in the state directory, and the same command serves them again",
    "api in memory": "groups that no trainer fetched are gone; --state-dir DIR keeps them",
    "engine fleet": "the servers keep their adapters; the same command uses them again",
    "engine serve": "checkpoints are kept; clients resume from them once the same command runs again",
    "record serve": "every answered call is a step of the store; clients need the gateway again to go on",
    "reward serve": "scores are not stored; the same command serves the model again",
    "rl serve": "weights are kept; the same command serves them again",
    "web": "ratings and runs are kept, and runs continue; its own jobs end; the same command serves it again",
}
"""By server: what is left when it was stopped, and how to go on."""


def report_stop(server: str) -> None:
    """Prints what a server leaves behind that ended in an orderly way."""
    click.echo(f"stopped; {STOPPED[server]}", err=True)


class NamedContext(click.Context):
    """A context that leaves the name of its command, such as `env check`, for `report_interrupt`."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        names: list[str] = []
        context: click.Context | None = self
        while context is not None and context.parent is not None:
            names.insert(0, context.info_name or "")
            context = context.parent
        self.meta[_PATH] = tuple(names)


def report_interrupt(ctx: click.Context) -> None:
    """Prints what was kept, and ends the command."""
    path: tuple[str, ...] = ctx.meta.get(_PATH, ())
    names = [" ".join(path[:length]) for length in range(len(path), 0, -1)]
    general = _GENERAL if path else _QUESTION  # a question or a chat has no command
    sentence = next((KEPT[name] for name in names if name in KEPT), general)
    click.echo(f"\ninterrupted; {sentence}", err=True)
    ctx.exit(EXIT_CODE)
