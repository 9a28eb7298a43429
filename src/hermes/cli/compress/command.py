"""`hermes compress`: fit trajectories to a token budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes.cli.options import json_option, stored_variables


@click.command()
@click.argument("named_source", metavar="[FILE|DIR|RUN|QUERY]", required=False)
@click.option(
    "--input",
    "source",
    metavar="FILE|DIR|RUN|QUERY",
    help="The same as the argument: JSONL file, folder, batch run, or stored trajectories"
    " such as 'run=my_run reward>=0.5'.",
)
@click.option("--output", type=click.Path(path_type=Path), help="JSONL file to write.")
@click.option(
    "--target-max-tokens",
    type=click.IntRange(min=1),
    default=8000,
    show_default=True,
    help="Token budget of a row.",
)
@click.option(
    "--tokenizer",
    metavar="NAME|DIR",
    default="hermes/smollm2",
    show_default=True,
    help="Tokenizer of the model to train: folder, hub name or tiktoken name.",
)
@click.option("--trust-remote-code", is_flag=True, help="Allow a hub tokenizer to run its own code.")
@click.option(
    "--strategy",
    type=click.Choice(["fold", "summarise", "auto"]),
    default="fold",
    show_default=True,
    help="How old parts become short: by rule, by a model's summary, or what fits.",
)
@click.option(
    "--summary-target-tokens",
    type=click.IntRange(min=32),
    default=750,
    show_default=True,
    help="Maximum length of the summary of one output or one span of exchanges.",
)
@click.option(
    "--protect-last-turns",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Final turns that are kept, except tool outputs that must be folded for the row to fit.",
)
@click.option(
    "--strict-protect",
    is_flag=True,
    help="Fold no tool output of protected turns; rows that then do not fit are written to a separate file.",
)
@click.option(
    "-m", "--model", metavar="PROVIDER/NAME", help="Model that writes the summaries for summarise and auto."
)
@click.option("--base-url", metavar="URL", help="Any OpenAI-compatible endpoint.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Concurrent requests to the model.",
)
@click.option(
    "--sample-percent",
    type=click.FloatRange(min=0, max=100, min_open=True),
    default=100.0,
    help="Only this share of the rows.",
)
@click.option("--seed", type=int, default=42, show_default=True, help="Seed of that sample.")
@click.option("--dry-run", is_flag=True, help="Count and report only; nothing is written.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="YAML file with these flags, or the older trajectory_compression.yaml.",
)
@json_option
@click.pass_context
@stored_variables
def compress(ctx: click.Context, /, **params: Any) -> None:
    """Fit trajectories to a token budget.

    Tool outputs are folded first, then thinking, then the tool outputs of the last turns; decisions and
    instructions go last. Rows that do not fit are written to a separate file with the reason. Originals
    are never changed.
    """
    from hermes.cli.compress.options import read_compress_options
    from hermes.cli.compress.run import run

    ctx.exit(run(read_compress_options(ctx, params)))
