"""`hermes doctor`: checks what works on this machine, with fixes for the rest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hermes.config.doctor.check import Check


def checks() -> list[Check]:
    """The findings on this machine, in a fixed order."""
    from hermes.config.doctor.report import examine
    from hermes.config.paths import db_path, home
    from hermes.sandbox.open import sandbox_checks
    from hermes.store.upkeep.maintain import doctor_check

    return [*examine(), *sandbox_checks(), doctor_check(db_path(home()))]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Check what works on this machine, and what would fix the rest.

    Exits with 1 only if something is missing that Hermes cannot work without.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.doctor.check import CheckStatus
    from hermes.safety.output.columns import wrapped
    from hermes.safety.text import printable

    with waiting("checking this machine"):
        findings = checks()
    failed = any(check.status is CheckStatus.FAIL for check in findings)
    if as_json:
        import json

        click.echo(
            json.dumps({"ok": not failed, "checks": [check.to_json() for check in findings]}, indent=2)
        )
        sys.exit(1 if failed else 0)
    width = max(len(check.name) for check in findings)
    for check in findings:
        click.echo(wrapped(f"{check.status:<7}  {check.name:<{width}}  {printable(check.what)}"))
        if check.status is CheckStatus.OK:
            continue
        indent = " " * (7 + 2 + width + 2)
        if check.gives:
            click.echo(wrapped(f"{indent}gives: {check.gives}"))
        if check.fix:
            click.echo(wrapped(f"{indent}fix:   {check.fix}"))
    counts = [f"{sum(check.status is status for check in findings)} {status}" for status in CheckStatus]
    click.echo(", ".join(counts))
    sys.exit(1 if failed else 0)
