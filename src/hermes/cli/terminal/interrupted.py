"""What Ctrl-C leaves behind, by command: what was kept, and how to go on.

Commands that stop in an orderly way print it themselves (`batch`, `compress`, `train` after its first step,
chat). For the others the group prints the line below, and the exit code is 130.
"""

from __future__ import annotations

from typing import Any

import click

EXIT_CODE = 130
_PATH = "hermes.command"
_AGAIN = "the same command starts again"
_NO_STEP = "no step was made; the same command starts again, and with --name RUN it resumes a run"
KEPT: dict[str, str] = {
    "bench": "finished samples are kept, and the same command continues with the others",
    "doctor": "nothing was changed",
    "env check": f"a check stores nothing; {_AGAIN}",
    "env debug": f"what a model has played is recorded up to here; {_AGAIN}",
    "env evaluate": f"recorded rollouts are kept, but no result was written; {_AGAIN}",
    "env process": "groups that were written are kept; the same command continues",
    "env serve": "groups that were sent are at the trajectory API; the same command serves again",
    "env verifiers install": f"the interpreter is incomplete; {_AGAIN}",
    "export": f"nothing was written: an export appears whole or not at all; {_AGAIN}",
    "import": "imported trajectories are kept; the same command imports the others, and none twice",
    "improve": "ratings are as before; 'hermes policy list' shows which policy is current",
    "policy compare": "answers that were completed are kept ('hermes trajectories list')",
    "quickstart": "what was made is kept in the quickstart's folder; the next quickstart starts from the "
    "beginning, in a folder of its own",
    "rate auto": "ratings are kept; the same command rates the others",
    "rate queue": "ratings are kept; the same command continues the queue",
    "reward score": f"nothing was stored; {_AGAIN}",
    "rl preflight": f"no run was started, and nothing was stored; {_AGAIN}",
    "rl start": "if it printed no run id, no run was started; 'hermes rl runs' lists those that were",
    "rl test": f"no run was started; {_AGAIN}",
    "rl weights": f"weights are written whole or not at all; {_AGAIN}",
    "skills check": f"nothing was changed; {_AGAIN}",
    "skills install": f"a skill is installed whole or not at all; {_AGAIN}",
    "store backup": f"no backup was written; {_AGAIN}",
    "store check": "nothing was changed",
    "store compact": f"the database is as before; {_AGAIN}",
    "train": _NO_STEP,
    "trajectories delete": f"nothing was deleted: a deletion is done whole or not at all; {_AGAIN}",
    "trajectories score": "rewards that were stored are kept; the same command scores all again",
}
"""By command, or by its group."""


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
    kept = next((KEPT[name] for name in names if name in KEPT), None)
    click.echo(f"\ninterrupted; {kept}" if kept else "\ninterrupted", err=True)
    ctx.exit(EXIT_CODE)
