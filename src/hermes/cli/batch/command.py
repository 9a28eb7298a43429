"""`hermes batch`: many prompts in parallel, resumable."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from hermes.cli.options import CommandGroup, json_option, refuse_key
from hermes.core.names import did_you_mean, nearest
from hermes.errors import UsageError

_output_dir = click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Folder that has the runs.",
)
_EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--dataset-file",
    metavar="FILE",
    help="JSONL, JSON, CSV or Parquet file, or a hub dataset (name or name:split).",
)
@click.option("--run-name", help="Names the output folder; the same name continues the run.")
@click.option("-m", "--model", metavar="PROVIDER/NAME", help="Model to use instead of the configured one.")
@click.option(
    "--base-url", metavar="URL", help="Any OpenAI-compatible server; without --model, the model it serves."
)
@click.option("--api-key", hidden=True, help="Refused: a key on a command line is visible to everyone.")
@click.option("--distribution", help="Draw toolsets per sample; see --list-distributions.")
@click.option("--toolsets", metavar="A,B", help="The same toolsets for every sample; 'none' for no tools.")
@click.option(
    "--allow-missing-toolsets",
    is_flag=True,
    help="Omit toolsets of --distribution or --toolsets that cannot be used here.",
)
@click.option(
    "--samples-per-prompt",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Attempts at each row.",
)
@click.option(
    "--seed", type=int, help="Makes toolset draws and, if the server supports it, sampling reproducible."
)
@click.option("--max-samples", type=click.IntRange(min=1), help="Only the first N rows.")
@click.option(
    "--num-workers", type=click.IntRange(min=1), default=4, show_default=True, help="Worker processes."
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=256, show_default=True, help="Samples in flight."
)
@click.option(
    "--executor",
    type=click.Choice(["process", "ray"]),
    default="process",
    show_default=True,
    help="Where workers run.",
)
@click.option("--ray-address", metavar="HOST:PORT", help="A running cluster; otherwise one on this machine.")
@click.option("--ray-insecure", is_flag=True, help="Also use a cluster that requires no token.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    help="Accepted for old command lines; samples are dispatched one by one.",
)
@click.option(
    "--max-turns",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Most model calls of a sample.",
)
@click.option("--timeout", type=float, help="Time limit of a sample, in seconds.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum length of one completion.")
@click.option("--temperature", type=float, help="Sampling temperature; the server's own if unset.")
@click.option(
    "--max-cost",
    type=float,
    help="Budget of the run in US dollars, over all its starts; needs prices.",
)
@click.option(
    "--max-tries",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Attempts at a sample after infrastructure failures.",
)
@click.option("--reasoning-effort", type=click.Choice(_EFFORTS), help="How long a reasoning model thinks.")
@click.option(
    "--reasoning-disabled", is_flag=True, help="Disable reasoning; takes precedence over --reasoning-effort."
)
@click.option(
    "--ephemeral-system-prompt",
    metavar="TEXT",
    help="System prompt that is sent to the model but left out of the dataset.",
)
@click.option(
    "--prefill-messages-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON list of messages that are sent but left out of the dataset.",
)
@click.option("--providers-allowed", metavar="A,B", help="OpenRouter routing.")
@click.option("--providers-ignored", metavar="A,B", help="OpenRouter routing.")
@click.option("--providers-order", metavar="A,B", help="OpenRouter routing.")
@click.option("--provider-sort", help="OpenRouter routing: price, throughput or latency.")
@click.option(
    "--reward",
    metavar="FILE.py:FUNCTION",
    help="Scores each finished trajectory. Rows with 'expected' are scored by exact match if unset.",
)
@click.option(
    "--require-reasoning",
    is_flag=True,
    help="Exclude samples without reasoning (filters write to filtered.jsonl).",
)
@click.option(
    "--drop-unknown-tools", is_flag=True, help="Exclude samples that call a tool that does not exist."
)
@click.option("--only-completed", is_flag=True, help="Exclude samples that a limit ended.")
@click.option("--keep-min-turns", type=click.IntRange(min=1), help="Exclude samples with fewer turns.")
@click.option("--keep-max-turns", type=click.IntRange(min=1), help="Exclude samples with more turns.")
@click.option("--min-reward", type=float, help="Exclude samples below this reward.")
@click.option("--dedupe", is_flag=True, help="Exclude repeated conversations.")
@click.option("--sandbox", metavar="NAME", help="local, bubblewrap or docker.")
@_output_dir
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="YAML file with these flags.",
)
@click.option(
    "--resume", is_flag=True, help="Require that the run exists; an existing run is continued in any case."
)
@click.option(
    "--accept-changes", is_flag=True, help="Continue a run although its settings or dataset changed."
)
@click.option("--list-distributions", is_flag=True, help="Print the toolset distributions and exit.")
@click.option("--verbose", is_flag=True, hidden=True)
@click.option("--log-prefix-chars", hidden=True)
@json_option
@click.pass_context
def batch(ctx: click.Context, /, **params: Any) -> None:
    """Run many prompts in parallel into DATA/RUN-NAME. The same command continues an interrupted run."""
    if ctx.invoked_subcommand is not None:
        return
    if params["list_distributions"]:
        from hermes.cli.setup.tools import tools

        ctx.invoke(tools, distributions=True, as_json=params["as_json"])
        return
    from hermes.batch.workers.launch import launch_early

    with launch_early() if params["executor"] == "process" else nullcontext() as worker:
        from hermes.cli.batch.options import read_batch_options
        from hermes.cli.batch.run import run

        refuse_key(params["api_key"])
        ctx.exit(run(read_batch_options(ctx, params), worker))


@batch.command()
@click.argument("run_name")
@_output_dir
@json_option
def status(run_name: str, output_dir: Path, as_json: bool) -> None:
    """Show how a run stands.

    Progress, time left, cost, mean reward, and failures by cause with one message each.

    \b
    hermes batch status first
    """
    from hermes.batch.overview import overview

    folder = output_dir / run_name
    if not (folder / "run.json").exists():
        raise _unknown_run(run_name, output_dir)
    facts = overview(folder)
    if as_json:
        click.echo(json.dumps(facts))
        return
    from hermes.cli.batch.status_text import status_text

    click.echo(status_text(facts))


@batch.command()
@click.argument("run_name")
@_output_dir
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete(run_name: str, output_dir: Path, yes: bool, as_json: bool) -> None:
    """Delete a run's folder: its journal, its dataset, its statistics.

    Its trajectories stay in the store; 'hermes trajectories delete --run NAME' deletes them.
    """
    from hermes.batch.output.finalise import delete_run
    from hermes.batch.overview import overview
    from hermes.cli import question

    folder = output_dir / run_name
    if not (folder / "run.json").exists():
        raise _unknown_run(run_name, output_dir)
    if not as_json:
        finished = overview(folder)["finished"]
        click.echo(f"{folder}: {finished} finished samples; its trajectories stay in the store")
    question.confirm_deletion(f"the run {run_name}", yes=yes)
    left = delete_run(folder)
    if as_json:
        click.echo(json.dumps({"deleted": run_name, "left": left}))
        return
    click.echo(f"deleted: run {run_name}" + (f"; {folder} keeps {', '.join(left)}" if left else ""))


def _unknown_run(name: str, output_dir: Path) -> UsageError:
    names = sorted(path.parent.name for path in output_dir.glob("*/run.json"))
    listing = f"there are: {', '.join(names)}" if names else "--output-dir names another folder"
    return UsageError(
        f"there is no run '{name}' in {output_dir}", did_you_mean(nearest(name, names), listing)
    )


@batch.command("list")
@_output_dir
@json_option
def list_(output_dir: Path, as_json: bool) -> None:
    """List all runs."""
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
