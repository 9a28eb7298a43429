"""`hermes engine import`: a PEFT adapter becomes checkpoints of a running engine."""

from __future__ import annotations

from pathlib import Path

import click

from hermes.cli.engine.show import url_option
from hermes.cli.options import json_option, stored_variables


@click.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="What the engine calls it; default: the folder's name.")
@url_option
@json_option
@stored_variables
def import_(folder: Path, name: str | None, url: str, as_json: bool) -> None:
    """Give a running engine the PEFT adapter in FOLDER, to sample and to train on.

    Its files are sent, so the engine may run elsewhere. What it makes of them stays until it is deleted.
    """
    import json

    from hermes.engine.server.client import import_adapter

    made = import_adapter(url, folder, name or folder.absolute().name)
    if as_json:
        click.echo(json.dumps(made, indent=2))
        return
    click.echo(f"{made['name']}: rank {made['rank']}, on {made['base_model']}")
    click.echo(f"  model name   {made['name']}")
    click.echo(f"  to sample    {made['sampler_weights']}")
    click.echo(f"  to train on  {made['weights']}")
    if made["made_for"] and Path(made["made_for"]).name != Path(made["base_model"]).name:
        note = f"note: the adapter says it was made for {made['made_for']}; its shapes fit this model"
        click.echo(note, err=True)
