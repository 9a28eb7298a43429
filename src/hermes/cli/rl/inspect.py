"""`hermes rl alerts | diff`: where a run broke a rule, and what differs between several runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from hermes.cli.options import json_option, stored_variables

if TYPE_CHECKING:
    from hermes.training.monitor.incidents.alerts import Alert


@click.command(hidden=True)
@click.argument("run_id")
@click.option(
    "--rule", "rules", multiple=True, metavar="RULE", help="Use this rule instead of rl.alerts; repeatable."
)
@json_option
@stored_variables
def alerts(run_id: str, rules: tuple[str, ...], as_json: bool) -> None:
    """Show where a run broke alert rules, as `hermes rl doctor` does."""
    from hermes.errors import UsageError

    rows, broken = broken_rules(run_id, rules)
    if broken is None:
        raise UsageError("no alert rule is set", "try one: --rule 'kl/reference > 0.5'; see also rl.alerts")
    if as_json:
        click.echo(json.dumps([alert.to_json() for alert in broken], indent=2))
        return
    for alert in broken:
        click.echo(f"{alert.sentence()}{', now' if alert.ongoing else ''}")
    if not broken:
        click.echo(f"no alert in {rows} steps")


def broken_rules(run_id: str, rules: tuple[str, ...]) -> tuple[int, list[Alert] | None]:
    """The number of steps, and where they broke a rule; None: no rule is set."""
    from hermes.config.load import load
    from hermes.rl.run import read_metrics
    from hermes.training.monitor.incidents.alerts import find_alerts, parse_rule
    from hermes.training.monitor.sinks import METRICS
    from hermes.web.runs.detail import find_folder

    config = load()
    parsed = [parse_rule(rule) for rule in rules or config.settings.rl.alerts]
    rows = [row for row in read_metrics(find_folder(config.home, run_id) / METRICS) if "step" in row]
    return len(rows), find_alerts(rows, parsed) if parsed else None


@click.command(hidden=True)
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN RUN…")
@json_option
@stored_variables
def diff(run_ids: tuple[str, ...], as_json: bool) -> None:
    """The same as `hermes rl results` with several runs."""
    print_differences(run_ids, as_json)


def print_differences(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Prints which fields of the configurations of runs differ."""
    from hermes.cli.tables import table_lines
    from hermes.config.load import load
    from hermes.errors import UsageError
    from hermes.safety.text import clip, printable
    from hermes.web.runs.configs import differences, read_config
    from hermes.web.runs.detail import find_folder

    home = load().home
    folders = {folder.name: folder for folder in (find_folder(home, run_id) for run_id in run_ids)}
    if len(folders) < 2:
        raise UsageError("one run differs from nothing", "give two or more runs")
    differing, equal = differences({name: read_config(folder) for name, folder in folders.items()})
    if as_json:
        fields = {field: dict(zip(folders, values, strict=True)) for field, values in differing}
        click.echo(json.dumps({"runs": list(folders), "differing": fields, "equal": equal}, indent=2))
        return
    rows = [(field, *(clip(printable(value or "–"), 40) for value in values)) for field, values in differing]
    for line in table_lines([("FIELD", *folders), *rows]):
        click.echo(line)
    click.echo(f"{equal} fields are equal")
