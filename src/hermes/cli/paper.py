"""`hermes paper`: a LaTeX project from the record of a run, and the check of the numbers in its text."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hermes.cli.options import folder_option, json_option


@click.group()
def paper() -> None:
    """A LaTeX paper from a run's record, and the check of its numbers."""


@paper.command()
@click.option("--run", "run_ids", multiple=True, required=True, help="A run; repeat it for further seeds.")
@click.option(
    "--venue",
    type=click.Choice(["neurips", "icml", "iclr"]),
    default="neurips",
    show_default=True,
    help="Conference whose form the paper has.",
)
@folder_option("Folder of the paper; default: paper-RUN.")
@click.option("--title", help="Title of the paper; default: from the run's environment and model.")
@click.option("--author", "authors", multiple=True, help="An author; repeatable. Default: anonymous.")
@click.option("--cite", "cited", multiple=True, metavar="ARXIV_ID", help="A paper for the bibliography.")
@click.option("--offline", is_flag=True, help="Take bibliography entries from the cache only.")
@click.option("--pdf", is_flag=True, help="Compile it, with tectonic or latexmk/pdflatex where present.")
@json_option
def new(
    run_ids: tuple[str, ...],
    venue: str,
    out: Path | None,
    title: str | None,
    authors: tuple[str, ...],
    cited: tuple[str, ...],
    offline: bool,
    pdf: bool,
    as_json: bool,
) -> None:
    """Write a LaTeX project that is filled from the record of a run.

    Tables with intervals, curves, configuration, machine, compute and the reproducibility checklist
    come from the record. What the record cannot say (the idea, the related work) is marked \\todo.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.paper.compile import compile_pdf
    from hermes.paper.project import PaperOptions, write_project
    from hermes.paper.record import read_records

    records = read_records(load().home, run_ids)
    folder = out or Path(f"paper-{records[0].run_id}")
    with waiting(f"writing {folder}"):
        project = write_project(folder, records, PaperOptions(venue, title, authors, cited, offline))
    with waiting(f"compiling {folder}"):
        document = compile_pdf(folder) if pdf else None
    if as_json:
        values = {"folder": str(folder), "files": project, "pdf": str(document) if document else None}
        click.echo(json.dumps(values, ensure_ascii=False))
        return
    click.echo(f"wrote {len(project)} files in {folder}")
    click.echo(f"compiled {document}" if document else f"compile it: cd {folder} && latexmk -pdf main.tex")


@paper.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@click.pass_context
def check(ctx: click.Context, folder: Path, as_json: bool) -> None:
    """Find numbers in a paper that its record does not have.

    The numbers are those in the text of FOLDER's paper, the record that of its runs. A number stands for a
    recorded one if rounding the recorded one to its digits gives it. Exits with 1 if a number has no source.
    """
    from hermes.cli.tables import table_lines
    from hermes.config.load import load
    from hermes.paper.numbers import check_numbers
    from hermes.paper.record import read_project_records

    findings, count = check_numbers(folder, read_project_records(load().home, folder))
    if as_json:
        values = {"numbers": count, "without_source": [finding.to_json() for finding in findings]}
        click.echo(json.dumps(values, ensure_ascii=False))
    else:
        click.echo(f"{count} numbers in the text, {len(findings)} without a source in the record")
        rows = [(f"{finding.file}:{finding.line}", finding.number, finding.context) for finding in findings]
        for line in table_lines(rows) if rows else ():
            click.echo(line)
    ctx.exit(1 if findings else 0)
