"""What `hermes trajectories redact` prints."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hermes.data.redaction.scan import RedactionFinding


def report_findings(findings: list[RedactionFinding], *, check: bool, as_json: bool) -> None:
    """Prints the findings; a check that found something ends the program with 1."""
    from hermes.data.redaction.scan import totals

    counted = totals(findings)
    if as_json:
        shown = [] if check else [asdict(finding) for finding in findings]
        click.echo(json.dumps({"steps": len(findings), "hits": counted, "findings": shown}))
    else:
        _print(findings, counted, check)
    if check and findings:
        sys.exit(1)


def _print(findings: list[RedactionFinding], counted: dict[str, int], check: bool) -> None:
    from hermes.cli.render import one_line

    if not check:
        for finding in findings:
            click.echo(
                f"{finding.trajectory_id} [{finding.step_index}] {finding.role}: {', '.join(finding.rules)}"
            )
            for excerpt in finding.excerpts:
                click.echo(f"  … {one_line(excerpt, 140)} …")
    places = len({finding.trajectory_id for finding in findings})
    click.echo(f"{sum(counted.values())} hits in {places} trajectories" if findings else "nothing found")
    for rule, count in counted.items():
        click.echo(f"  {rule}: {count}")
