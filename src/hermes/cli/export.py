"""`hermes export`: trajectories as training data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes.cli.options import build_filter, filter_options, json_option


@click.command()
@click.option("--format", "form", type=click.Choice(["sharegpt"]), default="sharegpt", show_default=True)
@click.option(
    "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="JSONL file to write."
)
@click.option(
    "--roles",
    type=click.Choice(["human-gpt", "user-assistant"]),
    default="human-gpt",
    show_default=True,
    help="Role names your trainer expects.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Also those that did not complete; each row says how it ended."
)
@filter_options
@json_option
def export(form: str, output: Path, roles: str, everything: bool, as_json: bool, **filters: Any) -> None:
    """Write trajectories as training data.

    Only completed ones, unless --all; what is left out is counted with its reason.
    """
    import json

    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.data.export import export_sharegpt
    from hermes.data.formats.sharegpt import Roles
    from hermes.store import Reader

    with Reader(db_path(load().home)) as reader:
        report = export_sharegpt(
            reader, build_filter(**filters), output, roles=Roles(roles), only_completed=not everything
        )
    if as_json:
        facts = {
            "output": str(output),
            "format": form,
            "rows": report.rows,
            "left_out": dict(report.left_out),
        }
        click.echo(json.dumps(facts))
        return
    click.echo(f"{report.rows} rows written to {output}")
    for reason, count in sorted(report.left_out.items()):
        click.echo(f"  left out: {count} ({reason})")
