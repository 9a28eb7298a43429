"""`hermes models`: the providers with their addresses and keys, and the bundled model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def models(as_json: bool) -> None:
    """List the providers and the bundled model. A model is named PROVIDER/NAME."""
    from hermes.config.load import load

    config = load()
    rows = _providers(config)
    if as_json:
        import json

        click.echo(json.dumps({"default": config.settings.model, "providers": rows}, indent=2))
        return
    from hermes.cli.tables import print_table

    click.echo(f"default model: {config.settings.model}\n")
    header = ("PROVIDER", "BASE URL", "KEY", "MODELS")
    body = [(row["name"], row["base_url"], _key_text(row), ", ".join(row["models"])) for row in rows]
    print_table([header, *body])
    click.echo("\nchoose one with --model PROVIDER/NAME, or: hermes config set model PROVIDER/NAME")


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


def _key_text(row: JSONObject) -> str:
    if row["key_env"] is None:
        return "none needed"
    if row["key"] is not None:
        return f"{row['key_env']} set (from {row['key']})"
    return f"{row['key_env']} not set" if row["key_needed"] else f"{row['key_env']} not set (optional)"
