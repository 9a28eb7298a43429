"""`hermes batch`: many prompts in parallel, resumable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from hermes.batch.options import BatchOptions, RunFolder
from hermes.cli.model_options import model_options, read_flags
from hermes.cli.options import CommandGroup, json_option, refuse_key
from hermes.core.names import did_you_mean, nearest
from hermes.errors import UsageError


def _read_flags_file(path: Path) -> Mapping[str, Any]:
    return read_flags(BatchOptions, path, "batch")


@click.group(cls=CommandGroup, invoke_without_command=True)
@model_options(BatchOptions, read_file=_read_flags_file)
@json_option
@click.pass_context
def batch(ctx: click.Context, /, options: BatchOptions, as_json: bool) -> None:
    """Run many prompts in parallel into DATA/RUN-NAME. The same command continues an interrupted run."""
    if ctx.invoked_subcommand is not None:
        return
    if options.list_distributions:
        from hermes.cli.setup.tools import tools

        ctx.invoke(tools, distributions=True, as_json=as_json)
        return
    from hermes.batch.workers.launch import launch_early

    with launch_early() if not options.uses_ray else nullcontext() as worker:
        from hermes.cli.batch.run import run

        refuse_key(options.api_key)
        ctx.exit(run(options, worker, as_json=as_json))


@batch.command()
@click.argument("run_name", required=False)
@model_options(RunFolder)
@json_option
def status(options: RunFolder, run_name: str | None, as_json: bool) -> None:
    """Show how a run stands, or list all runs.

    It shows progress, time left, cost, mean reward, and failures by cause with one message each.

    \b
    hermes batch status first
    """
    from hermes.batch.overview import overview

    if run_name is None:
        _list_runs(options.output_dir, as_json)
        return
    facts = overview(_run_folder(run_name, options.output_dir))
    if as_json:
        click.echo(json.dumps(facts))
        return
    from hermes.cli.batch.status_text import status_text

    click.echo(status_text(facts))


batch.former_names["list"] = "status"


@batch.command()
@click.argument("run_name")
@model_options(RunFolder)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete(options: RunFolder, run_name: str, yes: bool, as_json: bool) -> None:
    """Delete a run's folder: its journal, its dataset, its statistics.

    Its trajectories stay in the store; 'hermes trajectories delete --run NAME' deletes them.
    """
    from hermes.batch.output.finalise import delete_run
    from hermes.batch.overview import overview
    from hermes.cli import question

    folder = _run_folder(run_name, options.output_dir)
    if not as_json:
        finished = overview(folder)["finished"]
        click.echo(f"{folder}: {finished} finished samples; its trajectories stay in the store")
    question.confirm_deletion(f"the run {run_name}", yes=yes)
    left = delete_run(folder)
    if as_json:
        click.echo(json.dumps({"deleted": run_name, "left": left}))
        return
    click.echo(f"deleted: run {run_name}" + (f"; {folder} keeps {', '.join(left)}" if left else ""))


def _run_folder(name: str, output_dir: Path) -> Path:
    """UsageError if there is no such run."""
    folder = output_dir / name
    if (folder / "run.json").exists():
        return folder
    names = sorted(path.parent.name for path in output_dir.glob("*/run.json"))
    listing = f"there are: {', '.join(names)}" if names else "--output-dir names another folder"
    hint = did_you_mean(nearest(name, names), listing)
    raise UsageError(f"there is no run '{name}' in {output_dir}", hint)


def _list_runs(output_dir: Path, as_json: bool) -> None:
    from hermes.batch.overview import overview
    from hermes.cli.tables import columns

    folders = sorted(path.parent for path in output_dir.glob("*/run.json"))
    rows = [overview(folder) for folder in folders]
    if as_json:
        click.echo(json.dumps(rows))
    elif not rows:
        click.echo(f"no runs in {output_dir}")
    else:
        names = ("run", "state", "finished", "total", "failed", "mean_reward", "cost_usd", "model")
        cells = [[_cell(row[name]) for name in names] for row in rows]
        click.echo(columns([[name.replace("_", " ") for name in names], *cells]))


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
