"""What `hermes export` prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.data.export.run import ExportPlan, ExportReport

_PREVIEW_ROWS = 3
_SHOWN_CHARS = 4_000


def list_formats(as_json: bool) -> None:
    from hermes.cli.render import columns
    from hermes.data.formats.registry import FORMATS

    if as_json:
        listed = [
            {"name": f.name, "version": f.version, "summary": f.summary, "keeps": f.keeps, "loses": f.loses}
            for f in FORMATS.values()
        ]
        click.echo(json.dumps(listed))
        return
    rows = [(f.name, "both" if f.read else "export", f.summary) for f in FORMATS.values()]
    click.echo(columns([("format", "import", "rows"), *rows]))


def show_preview(config: Config, plan: ExportPlan, as_json: bool) -> None:
    from hermes.config.paths import db_path
    from hermes.data.export.run import preview
    from hermes.safety.redact import Redactor
    from hermes.safety.text import clip, printable
    from hermes.store import Reader

    with Reader(db_path(config.home)) as reader:
        rows, left_out = preview(reader, plan, _PREVIEW_ROWS, Redactor(config.secrets))
    if as_json:
        click.echo(json.dumps({"format": plan.form.name, "rows": rows, "left_out": dict(left_out)}))
        return
    for row in rows:
        click.echo(clip(printable(json.dumps(row, indent=2, ensure_ascii=False)), _SHOWN_CHARS))
    click.echo(f"the first {len(rows)} rows as {plan.form.name}; nothing was written")
    for reason, count in sorted(left_out.items()):
        click.echo(f"  left out so far: {count} ({printable(reason)})")


def tell(plan: ExportPlan, report: ExportReport) -> None:
    from hermes.safety.text import printable

    for file in report.facts["files"]:
        click.echo(f"{file['rows']} rows written to {plan.output.with_name(file['name'])}")
    for reason, count in sorted(report.left_out.items()):
        click.echo(f"  left out: {count} ({printable(reason)})")
    for rule, count in report.facts["redaction"]["hits"].items():
        click.echo(f"  redacted: {count} ({rule})")
