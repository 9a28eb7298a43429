"""`hermes compress`: fit trajectories to a token budget."""

from __future__ import annotations

import click

from hermes.cli.compress.options import CompressOptions, read_compress_file
from hermes.cli.model_options import model_options
from hermes.cli.options import json_option, stored_variables


@click.command()
@model_options(CompressOptions, read_file=read_compress_file)
@json_option
@click.pass_context
@stored_variables
def compress(ctx: click.Context, /, options: CompressOptions, as_json: bool) -> None:
    """Fit trajectories to a token budget.

    Tool outputs are folded first, then thinking, then the tool outputs of the last turns; decisions and
    instructions go last. Rows that do not fit are written to a separate file with the reason. Originals
    are never changed.
    """
    from hermes.cli.compress.run import run

    ctx.exit(run(options, as_json=as_json))
