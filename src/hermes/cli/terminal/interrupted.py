"""What Ctrl-C leaves behind, by command: what was kept, and how to go on.

Commands that stop in an orderly way print it themselves (`batch`, `compress`, `train` after its first step,
chat). Servers end with the exit code 0 and a line of STOPPED. For the others the group prints a line of KEPT,
or that nothing was changed, and the exit code is 130. A test holds that every command is one of these.
"""

from __future__ import annotations

from typing import Any

import click

EXIT_CODE = 130
_PATH = "hermes.command"
_AGAIN = "the same command starts again"
_QUESTION = "what had arrived is recorded, unless --no-log: 'hermes trajectories show last'"
_NO_STEP = "no step was made; the same command starts again, and with --name RUN it resumes a run"
KEPT: dict[str, str] = {
    "config edit": "the settings are as before",
    "config set": f"nothing was set; {_AGAIN}",
    "config unset": f"nothing was changed; {_AGAIN}",
    "batch delete": "files that were deleted are gone; the same command deletes the others",
    "bench": "finished samples are kept, and the same command continues with the others",
    "doctor": "nothing was changed",
    "engine bench": f"nothing was stored; {_AGAIN}",
    "engine import": f"an adapter is imported whole or not at all; {_AGAIN}",
    "env check": f"a check stores nothing; {_AGAIN}",
    "env debug": f"what a model has played is recorded up to here; {_AGAIN}",
    "env evaluate": f"recorded rollouts are kept, but no result was written; {_AGAIN}",
    "env new": "a file is written whole or not at all",
    "env process": "groups that were written are kept; the same command continues",
    "env serve": "groups that were sent are at the trajectory API; the same command serves again",
    "env verifiers install": f"the interpreter is incomplete; {_AGAIN}",
    "export": f"nothing was written: an export appears whole or not at all; {_AGAIN}",
    "import": "imported trajectories are kept; the same command imports the others, and none twice",
    "improve": "ratings are as before; 'hermes policy list' shows which policy is current",
    "memory add": "a fact is added whole or not at all: 'hermes memory list'",
    "memory remove": "a fact is removed whole or not at all: 'hermes memory list'",
    "policy compare": "answers that were completed are kept ('hermes trajectories list')",
    "policy delete": "'hermes policy list' shows whether the policy is still there",
    "policy promote": "'hermes policy list' shows which policy is current",
    "policy rollback": "'hermes policy list' shows which policy is current",
    "quickstart": "what was made is kept in the quickstart's folder; the next quickstart starts from the "
    "beginning, in a folder of its own",
    "rate auto": "ratings are kept; the same command rates the others",
    "rate queue": "ratings are kept; the same command continues the queue",
    "rate undo": "a rating is withdrawn whole or not at all: 'hermes rate list'",
    "reward score": f"nothing was stored; {_AGAIN}",
    "rl agent": "the conversation is recorded up to here; runs that it started continue: 'hermes rl runs'",
    "rl config": "fields that were not printed as changed are as before",
    "rl preflight": f"no run was started, and nothing was stored; {_AGAIN}",
    "rl resume": "'hermes rl runs' shows whether it runs; the same command resumes it",
    "rl select": f"the selection is as before; {_AGAIN}",
    "rl start": "if it printed no run id, no run was started; 'hermes rl runs' lists those that were",
    "rl stop": "'hermes rl status RUN' shows its state; the same command stops it",
    "rl sweep": "its runs are stopped and kept: 'hermes rl runs' lists them, 'hermes rl resume RUN' goes on",
    "rl test": f"no run was started; {_AGAIN}",
    "rl weights": f"weights are written whole or not at all; {_AGAIN}",
    "skills check": f"nothing was changed; {_AGAIN}",
    "skills install": f"a skill is installed whole or not at all; {_AGAIN}",
    "skills learn": f"a draft is written whole or not at all; {_AGAIN}",
    "store backup": f"no backup was written; {_AGAIN}",
    "store check": "nothing was changed",
    "store salvage": f"no file was written; {_AGAIN}",
    "store compact": f"the database is as before; {_AGAIN}",
    "templates edit": "the template is as it was saved last",
    "train": _NO_STEP,
    "trajectories delete": f"nothing was deleted: a deletion is done whole or not at all; {_AGAIN}",
    "trajectories score": "rewards that were stored are kept; the same command scores all again",
}
"""By command, or by its group."""

STOPPED: dict[str, str] = {
    "api": "acknowledged groups are in the state directory, and the same command serves them again",
    "api in memory": "groups that no trainer fetched are gone; --state-dir DIR keeps them",
    "engine fleet": "the servers keep their adapters; the same command uses them again",
    "engine serve": "checkpoints are kept; clients resume from them once the same command runs again",
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
    sentence = next((KEPT[name] for name in names if name in KEPT), None)
    if not path:  # a question or a chat, which has no command
        sentence = _QUESTION
    click.echo(f"\ninterrupted; {sentence or 'nothing was changed'}", err=True)
    ctx.exit(EXIT_CODE)
