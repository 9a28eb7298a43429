"""`hermes import`: stores conversations from other sources."""

from __future__ import annotations

from pathlib import Path

import click

from hermes.cli.options import json_option

_SHOWN_PROBLEMS = 20


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--format", "form", metavar="NAME", help="Format of the files; detected for each row if unset.")
@click.option("--run", "run_id", metavar="NAME", help="Run id of the imported rows.")
@json_option
def import_(files: tuple[Path, ...], form: str | None, run_id: str | None, as_json: bool) -> None:
    """Store conversations from FILES: JSONL, JSON, Parquet, or folders of them.

    ShareGPT, OpenAI messages, ATIF, session traces, batch runs of hermes-agent, and whole records of
    another Hermes. Rows that cannot be read are reported with their line, the others stored, and the exit
    code is 1. A row that is in the store already is not stored again.
    """
    import json
    import sys

    from hermes.agent.build import open_writer
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.data.importing import import_files
    from hermes.safety.text import printable
    from hermes.store import Reader

    config = load()
    with open_writer(config) as writer, Reader(db_path(config.home)) as reader, waiting("importing"):
        result = import_files(list(files), reader, writer, form=form, run_id=run_id)
    if as_json:
        problems = [problem._asdict() for problem in result.problems]
        click.echo(json.dumps({"rows": result.rows, "known": result.known, "problems": problems}))
    else:
        click.echo(f"{result.rows} trajectories imported")
        if result.known:
            click.echo(f"  in the store already: {result.known}")
        for problem in result.problems[:_SHOWN_PROBLEMS]:
            click.echo(f"  not imported: {printable(str(problem))}", err=True)
        if len(result.problems) > _SHOWN_PROBLEMS:
            click.echo(f"  … and {len(result.problems) - _SHOWN_PROBLEMS} more (--json lists all)", err=True)
    if result.problems:
        sys.exit(1)
