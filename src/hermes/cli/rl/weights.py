"""`hermes rl weights | serve`: the weights of a run, as files or from a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import json_option, stored_variables
from hermes.config.option import Options, option


class WeightsOptions(Options):
    name: str | None = option(None, "", argument=True, metavar="[RUN|tinker://…]")
    step: int | None = option(None, "Step of the checkpoint; default: the newest.", ge=0)
    form: Literal["peft", "merged", "gguf"] = option(
        "peft", "An adapter folder, a complete model, or a file for llama.cpp.", "--format"
    )
    output: Path | None = option(
        None, "Target; default: the run's folder, or ./checkpoints/… for a tinker:// path."
    )
    into: Path | None = option(
        None,
        "Parent folder instead; the target is named like the run at the engine or service.",
        path="folder",
        hidden=True,
    )
    base_url: str | None = option(
        None,
        "Tinker service that has the weights. Default: rl.service, TINKER_BASE_URL, this machine.",
        "--service",
        former=("--base-url",),
        metavar="URL|managed",
    )


@click.command()
@model_options(WeightsOptions)
@json_option
@stored_variables
def weights(options: WeightsOptions, as_json: bool) -> None:
    """Write trained weights to a folder or file, and print its path.

    RUN is a run of `hermes rl` or of `hermes train`; without a name, the one that saved a checkpoint last.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.disk.files import stored_folder
    from hermes.rl.weights.export import base_quantization, export_adapter, export_gguf, export_merged
    from hermes.rl.weights.source import find_source

    form, output = options.form, options.output
    export = {"peft": export_adapter, "merged": export_merged, "gguf": export_gguf}[form]
    source = find_source(load(), options.name, options.step, options.base_url)
    if options.into is not None and output is None:
        output = stored_folder(options.into, source.run_id)
    with waiting(f"writing the weights of {source.run_id}"):
        path = export(source, output)
    adapter = path if form == "peft" else source.adapter_folder
    if (kind := base_quantization(adapter)) is not None:
        click.echo(
            f"note: the adapter was trained on a base in {kind}; other forms of the base give slightly other "
            "answers",
            err=True,
        )
    click.echo(json.dumps({"path": str(path), "format": form}) if as_json else str(path))


@click.command(hidden=True)
@click.argument("run_id", required=False, metavar="[RUN]")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port to listen on; 8001, or a free one, if unset."
)
@stored_variables
def serve(run_id: str | None, port: int | None) -> None:
    """The same as `hermes policy serve run:RUN`. Without RUN: the newest one."""
    from hermes.cli.policy.command import serve_named
    from hermes.config.load import load
    from hermes.rl.run import newest_run

    serve_named(f"run:{run_id or newest_run(load().home).run_id}", port)
