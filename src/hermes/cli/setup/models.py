"""`hermes models`: every name that --model takes: of providers, of your own, and of what was trained here."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject

_SHOWN = 12
"""Names of a user's own that are printed."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def models(as_json: bool) -> None:
    """List the names that --model takes: PROVIDER/NAME, your own names, policies and runs."""
    from hermes.config.load import load

    config = load()
    rows = _providers(config)
    names = _names(config)
    if as_json:
        import json

        report = {"default": config.settings.model, "providers": rows, "names": dict(names)}
        click.echo(json.dumps(report, indent=2))
        return
    from hermes.cli.tables import print_table

    click.echo(f"default model: {config.settings.model}\n")
    header = ("PROVIDER", "BASE URL", "KEY", "MODELS")
    body = [(row["name"], row["base_url"], _key_text(row), ", ".join(row["models"])) for row in rows]
    print_table([header, *body])
    if names:
        click.echo()
        print_table([("NAME", "WHO ANSWERS"), *names[:_SHOWN]])
    if more := max(0, len(names) - _SHOWN):
        click.echo(f"and {more} more: --json, hermes policy list, hermes rl status --all")
    click.echo("\nchoose one with --model NAME; for every chat: hermes config set model NAME")


def _providers(config: Config) -> list[JSONObject]:
    from hermes.config.providers import BUNDLED_MODELS, BUNDLED_PROVIDER, needs_key, profiles
    from hermes.config.secrets import hide

    rows: list[JSONObject] = []
    for name, profile in profiles(config.settings, config.environ).items():
        rows.append(
            {
                "name": name,
                "base_url": hide("base_url", profile.base_url, config.secrets.values()),
                "key_env": profile.key_env,
                "key": None if profile.key_env is None else config.variable_origin(profile.key_env),
                "key_needed": needs_key(name, profile),
                "models": [f"{name}/{model}" for model in BUNDLED_MODELS] if name == BUNDLED_PROVIDER else [],
            }
        )
    return rows


def _names(config: Config) -> list[tuple[str, str]]:
    """The user's own names, the policies, and the runs that have weights, each with who answers to it."""
    from hermes.errors import HermesError
    from hermes.rl.weights.source import find_source
    from hermes.training.checkpoints import NAME as STATE
    from hermes.training.policy_registry import BASE_ID, NAME, PolicyRegistry

    registry = PolicyRegistry(config.home)
    names = list(config.settings.model_aliases.items())
    if policies := registry.policies():
        current = registry.current()
        names.append((NAME, current.base_model if current.id == BASE_ID else current.label))
        names += [(f"{NAME}:{record.label}", f"{record.label} on {record.base_model}") for record in policies]
    states = sorted((config.home / "runs").glob(f"*/{STATE}"), key=os.path.getmtime, reverse=True)
    for run in (state.parent.name for state in states):
        with suppress(HermesError):  # without weights, or damaged: it cannot answer
            names.append((f"run:{run}", find_source(config, run).name))
    return names


def _key_text(row: JSONObject) -> str:
    if row["key_env"] is None:
        return "none needed"
    if row["key"] is not None:
        return f"{row['key_env']} set (from {row['key']})"
    return f"{row['key_env']} not set" if row["key_needed"] else f"{row['key_env']} not set (optional)"
