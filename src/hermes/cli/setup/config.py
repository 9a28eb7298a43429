"""`hermes config`: show, set, unset, edit. No secret is ever printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.options import CommandGroup
from hermes.core import JSON
from hermes.core.names import did_you_mean, nearest
from hermes.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from hermes.config.load import Config


def check_names(path: Sequence[str], value: JSON) -> None:
    """ConfigError if the value at this key of the settings names something that does not exist."""
    match tuple(path), value:
        case ("sandbox",), {"backend": str() as name}:
            _check_backend(name)
        case ("sandbox", "backend"), str() as name:
            _check_backend(name)
        case ("sandbox", "network_allow"), list() as addresses:
            _check_addresses(addresses)
        case ("toolsets",) | ("providers", _, "toolsets"), list() as names:
            _check_toolsets(path, names)
        case ("distributions", _), dict() as percents:
            _check_toolsets(path, percents)
        case ("distributions", _, name), _:
            _check_toolsets(path[:2], [name])


def note_on_model(config: Config, key: str) -> str | None:
    """A note if the model that was set names a provider that does not exist."""
    from hermes.config.providers import resolve_model

    settings = config.settings
    models = {
        "model": settings.model,
        "media.vision_model": settings.media.vision_model,
        "media.image_model": settings.media.image_model,
    }
    if (model := models.get(key)) is None:
        return None
    try:
        resolve_model(settings, config.environ, model)
    except UsageError as error:
        return f"{error.message}; {error.hint}"
    except ConfigError:  # the key is not set yet; the first request says so
        return None
    return None


def _check_backend(name: str) -> None:
    from hermes.sandbox.open import sandbox_names

    names = ["auto", *sandbox_names()]
    if name not in names:
        raise ConfigError(
            f"sandbox.backend: there is no sandbox '{name}'; there are: {', '.join(names)}",
            did_you_mean(nearest(name, names), "others are plug-ins; install it first"),
        )


def _check_addresses(addresses: Sequence[JSON]) -> None:
    from hermes.sandbox.network.plan import HOST, route_plan

    route_plan([address for address in addresses if isinstance(address, str) and address != HOST], ())


def _check_toolsets(path: Sequence[str], names: Sequence[JSON] | Mapping[str, JSON]) -> None:
    from hermes.tools.registry import check_toolset, toolset_names

    for name in names:
        try:
            if isinstance(name, str):
                check_toolset(name)
        except UsageError as error:
            listing = ", ".join(toolset_names())
            raise ConfigError(
                f"{'.'.join(path)}: {error.message}; there are: {listing}", error.hint
            ) from error


_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=CommandGroup)
def config() -> None:
    """Show and change settings.

    Flags take precedence over environment variables, then .env, then config.yaml. Every setting can be
    given as a variable: sandbox.backend is HERMES_SANDBOX__BACKEND.
    """


@config.command()
@click.argument("key", required=False)
@_JSON
def show(key: str | None, as_json: bool) -> None:
    """List every setting with its value and origin, or show the value of KEY.

    Of a variable it tells only whether it is set. `hermes config show paths` has the directories and files.
    """
    from hermes.cli.tables import print_table
    from hermes.config.load import load
    from hermes.config.show import entries
    from hermes.safety.text import clip

    if key == "paths":
        _show_paths(as_json)
        return
    if key is not None:
        _show_value(key, as_json)
        return
    settings = entries(load())
    if as_json:
        click.echo(json.dumps({entry.key: entry.to_json() for entry in settings}, indent=2))
        return
    longest = 72 if sys.stdout.isatty() else sys.maxsize
    rows = [(entry.key, clip(entry.text, longest), entry.origin.value) for entry in settings]
    print_table([("KEY", "VALUE", "ORIGIN"), *rows])


config.former_names["get"] = "show"


def _show_value(key: str, as_json: bool) -> None:
    from hermes.config.edit import is_variable
    from hermes.config.load import load
    from hermes.config.show import as_text, setting, variable

    settings = load()
    if is_variable(key):
        entry = variable(settings, key)
        click.echo(json.dumps(entry.to_json()) if as_json else entry.text)
        return
    value = setting(settings, key)
    click.echo(json.dumps(value) if as_json else as_text(value))


@config.command(name="set")
@click.argument("key")
@click.argument("value", required=False)
def set_(key: str, value: str | None) -> None:
    """Set a setting, or a variable such as OPENROUTER_API_KEY.

    Variables go to .env and are asked for when VALUE is left out, so that a key need not appear in the
    shell's history. Lists are written a,b or [a, b].
    """
    from hermes.config import paths
    from hermes.config.edit import is_variable, set_value
    from hermes.config.schema import read_value, require_path

    if value is None and not is_variable(key):
        raise UsageError(f"no value for {key}", f"hermes config set {key} VALUE")
    text = _read_secret(key) if value is None else value
    if not is_variable(key):
        setting = require_path(key)
        check_names(setting, read_value(setting, text))
    path = set_value(paths.home(), key, text)
    click.echo(f"set {key} in {path}")
    _print_note(key)


@config.command()
@click.argument("key")
def unset(key: str) -> None:
    """Remove a setting or variable from its file."""
    from hermes.config import paths
    from hermes.config.edit import unset_value

    removed = unset_value(paths.home(), key)
    click.echo(f"unset {key}" if removed else f"{key} was not set")
    _print_note(key)


@config.command(hidden=True)
@_JSON
def path(as_json: bool) -> None:
    """The same as `hermes config show paths`."""
    _show_paths(as_json)


def _show_paths(as_json: bool) -> None:
    from hermes.cli.tables import print_table
    from hermes.config import paths

    home = paths.home()
    locations: dict[str, Path] = {
        "home": home,
        "config": paths.config_path(home),
        "env": paths.env_path(home),
        "database": paths.db_path(home),
        "skills": paths.skills_dir(home),
        "models": paths.models_dir(home),
        "workspaces": paths.workspaces_dir(home),
        "logs": paths.logs_dir(home),
    }
    if as_json:
        click.echo(json.dumps({name: str(location) for name, location in locations.items()}, indent=2))
        return
    print_table([(name, str(location)) for name, location in locations.items()])


@config.command()
def edit() -> None:
    """Open config.yaml in $VISUAL or $EDITOR.

    Only a valid file replaces the old one.
    """
    import os

    from hermes.config import paths
    from hermes.config.edit import edit_config

    home = paths.home()
    changed = edit_config(home, os.environ)
    click.echo(f"saved {paths.config_path(home)}" if changed else "nothing changed")


def _read_secret(name: str) -> str:

    if sys.stdin.isatty():
        return str(click.prompt(name, hide_input=True))
    text = sys.stdin.readline().rstrip("\r\n")
    if not text:
        raise UsageError(
            f"no value for {name}", f"give it on standard input: hermes config set {name} < FILE"
        )
    return text


def _print_note(key: str) -> None:
    """Prints a note if the change has no effect, or perhaps not the intended one."""
    from hermes.config.load import load
    from hermes.config.show import note_on_change
    from hermes.errors import HermesError

    try:
        settings = load()
        note = note_on_change(settings, key) or note_on_model(settings, key)
    except HermesError as error:
        note = error.message
    if note:
        click.echo(f"note: {note}", err=True)
