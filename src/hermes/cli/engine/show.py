"""`hermes engine models` and `hermes engine adapters`: what a running engine serves and keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from hermes.cli.options import json_option, stored_variables

url_option = click.option(
    "--url", default="http://127.0.0.1:8001", show_default=True, help="Address of a running engine."
)


@click.command()
@url_option
@json_option
@stored_variables
def models(url: str, as_json: bool) -> None:
    """Every name that a running engine answers to, and the weights it means now."""
    from hermes.engine.server.client import request_json

    served = request_json(url, "v1/models")["data"]
    rows = [(one["id"], str(one["max_model_len"]), one["metadata"]["weight_version"]) for one in served]
    _show(served, ("MODEL", "CONTEXT", "WEIGHTS"), rows, as_json)


@click.command()
@url_option
@json_option
@stored_variables
def adapters(url: str, as_json: bool) -> None:
    """The adapters of a running engine and their checkpoints."""
    from hermes.engine.server.client import request_json

    runs = request_json(url, "api/v1/training_runs?limit=1000")["training_runs"]
    kept = request_json(url, "api/v1/checkpoints?limit=10000")["checkpoints"]
    for run in runs:
        prefix = f"tinker://{run['training_run_id']}/"
        run["checkpoints"] = [one for one in kept if one["tinker_path"].startswith(prefix)]
    rows = [
        (run["training_run_id"], str(run["lora_rank"]), run["last_request_time"][:19], checkpoint)
        for run in runs
        for checkpoint in [one["checkpoint_id"] for one in run["checkpoints"]] or [""]
    ]
    _show(runs, ("ADAPTER", "RANK", "LAST USED", "CHECKPOINT"), rows, as_json)


def _show(data: Any, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps(data, indent=2))
        return
    from hermes.cli.tables import aligned

    for line in aligned([header, *rows]):
        click.echo(line)
