"""`hermes import`: stores conversations from other sources, and sessions of coding agents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import json_option

if TYPE_CHECKING:
    from hermes.data.importing import Imported
    from hermes.data.sessions.run import SessionRequest

_SHOWN_PROBLEMS = 20
_SHOWN_TYPES = 5
_CLIENTS = ("auto", "claude-code", "codex", "opencode", "pi", "hermes-agent")


@click.command("import")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--from",
    "client",
    type=click.Choice(_CLIENTS),
    help="Whose sessions they are; auto recognises each file.",
)
@click.option("--format", "form", metavar="NAME", help="Format of the files; detected for each row if unset.")
@click.option("--run", "run_id", metavar="NAME", help="Run id of the imported rows.")
@click.option("--watch", is_flag=True, help="Keep importing what is new; needs --from.")
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a session has to be at rest before --watch imports it.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def import_(
    files: tuple[Path, ...],
    client: str | None,
    form: str | None,
    run_id: str | None,
    watch: bool,
    settle_s: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Store conversations from FILES: JSONL, JSON, Parquet, or folders of them.

    ShareGPT, OpenAI messages, ATIF, session traces, batch runs of hermes-agent, and whole records of
    another Hermes. With --from: the sessions of a coding agent, from FILES or from where it leaves them.
    Rows that cannot be read are reported with their line, the others stored, and the exit code is 1. A row
    that is in the store already is not stored again, and of a session that grew only what is new.
    """
    import sys

    from hermes.agent.build import open_writer
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.data.importing import import_files
    from hermes.errors import UsageError
    from hermes.store import Reader

    if client is None and (watch or not files):
        raise UsageError(
            "--watch needs --from" if files else "nothing to import is named",
            "hermes import FILES, or hermes import --from auto for the sessions of coding agents",
        )
    if client is not None and form is not None:
        raise UsageError("--format is of rows, and --from of sessions", "leave one of them out")
    config = load()
    request = _request(client, files, run_id, ask=not yes, as_json=as_json) if client is not None else None
    with open_writer(config) as writer, Reader(db_path(config.home)) as reader:
        if request is None:
            with waiting("importing"):
                result = import_files(list(files), reader, writer, form=form, run_id=run_id)
        else:
            from hermes.data.sessions.run import import_sessions, watch_sessions

            if watch:
                watch_sessions(
                    request, reader, writer, settle_s=settle_s, report=lambda done: _print(done, as_json)
                )
            with waiting("importing"):
                result = import_sessions(request, reader, writer)
    _print(result, as_json)
    if result.problems:
        sys.exit(1)


def _request(
    client: str, files: tuple[Path, ...], run_id: str | None, *, ask: bool, as_json: bool
) -> SessionRequest:
    """The sources to import; with `auto` the command shows what there is and asks."""
    from hermes.cli.question import confirm, has_person
    from hermes.data.sessions.clients import AUTO, default_places
    from hermes.data.sessions.run import SessionRequest, survey
    from hermes.errors import UsageError

    request = SessionRequest(client, list(files) or default_places(client), run_id)
    if not request.paths:
        whose = "a coding agent" if client == AUTO else client
        raise UsageError(
            f"there are no sessions of {whose} where they usually are", "name the file or the folder"
        )
    if client != AUTO or not ask:
        return request
    for entry in survey(request):
        size = f"{entry.size_bytes / 1e6:.1f} MB"
        noun = "file" if entry.files == 1 else "files"
        click.echo(f"{entry.agent}: {entry.files} {noun}, {size}, in {', '.join(entry.places)}", err=as_json)
    if not confirm("Import them?", err=as_json):
        hint = "answer y" if has_person() else "add --yes: standard input is no terminal"
        raise UsageError("nothing was imported: it was not confirmed", hint)
    return request


def _print(result: Imported, as_json: bool) -> None:
    import json

    from hermes.core.names import counted
    from hermes.safety.text import printable

    if as_json:
        problems = [problem._asdict() for problem in result.problems]
        counts = {"rows": result.rows, "known": result.known, "problems": problems}
        click.echo(json.dumps(counts | ({"ignored": result.ignored} if result.ignored else {})))
        return
    click.echo(f"{counted(result.rows, 'trajectories')} imported")
    if result.known:
        click.echo(f"  in the store already: {result.known}")
    if result.ignored:
        types = ", ".join(f"{name[:40]} {count}" for name, count in result.ignored.most_common(_SHOWN_TYPES))
        click.echo(printable(f"  lines that are no messages: {result.ignored.total()} ({types})"))
    for problem in result.problems[:_SHOWN_PROBLEMS]:
        click.echo(f"  not imported: {printable(str(problem))}", err=True)
    if len(result.problems) > _SHOWN_PROBLEMS:
        click.echo(f"  … and {len(result.problems) - _SHOWN_PROBLEMS} more (--json lists all)", err=True)
