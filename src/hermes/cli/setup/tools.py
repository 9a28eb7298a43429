"""`hermes tools`: the available tools, and why a tool is unavailable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from hermes.cli.tables import print_table
from hermes.core import JSONObject

if TYPE_CHECKING:
    from hermes.config.settings import Settings


@click.command()
@click.option("--distributions", is_flag=True, help="List the toolset distributions instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tools(distributions: bool, as_json: bool) -> None:
    """List the tools and why one is unavailable."""
    from hermes.config.load import load

    config = load()
    if distributions:
        _distributions(config.settings, as_json)
        return
    rows = _tools(config.settings, config.environ)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    cells = (
        (row["toolset"], row["tool"] or "-", "yes" if row["available"] else f"no: {row['why']}")
        for row in rows
    )
    print_table([("TOOLSET", "TOOL", "AVAILABLE"), *cells])


def _tools(settings: Settings, environ: Mapping[str, str]) -> list[JSONObject]:
    from hermes.tools import registry
    from hermes.tools.toolsets import TOOLSETS

    rows: list[JSONObject] = []
    for name in registry.toolset_names():
        members = registry.tools_in(name)
        rows += [
            _row(name, tool.name, tool.description, tool.unavailable(settings, environ)) for tool in members
        ]
        if not members:
            rows.append(
                _row(name, None, TOOLSETS[name].description, registry.connection_problem(name, settings))
            )
    return rows


def _row(toolset: str, tool: str | None, description: str, problem: str | None) -> JSONObject:
    return {
        "toolset": toolset,
        "tool": tool,
        "description": description,
        "available": problem is None,
        "why": problem,
    }


def _distributions(settings: Settings, as_json: bool) -> None:
    from hermes.tools.distributions import available

    table = available(settings.distributions)
    if as_json:
        click.echo(json.dumps({name: dict(percents) for name, percents in table.items()}, indent=2))
        return
    chances = (", ".join(f"{name} {percent}%" for name, percent in row.items()) for row in table.values())
    print_table([("DISTRIBUTION", "CHANCE OF EACH TOOLSET"), *zip(table, chances, strict=True)])
