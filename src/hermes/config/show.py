"""Settings and variables as they may be shown to a person: with their origin, never with a secret."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hermes.config import load, schema
from hermes.config.edit import is_variable
from hermes.config.environment import is_setting_name
from hermes.config.load import Config, SettingOrigin
from hermes.config.providers import profiles
from hermes.config.secrets import hide
from hermes.core import JSON, JSONObject
from hermes.core.names import did_you_mean, nearest


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """One line of `hermes config show`."""

    key: str
    value: JSON
    """For a variable `set` or `unset`, for a setting its value without secrets."""
    origin: SettingOrigin
    variable: bool = False

    @property
    def text(self) -> str:
        if self.variable and self.value == "set":
            return f"set (from {self.origin})"
        return as_text(self.value)

    def to_json(self) -> JSONObject:
        return {"value": self.value, "origin": self.origin.value}


def entries(config: Config) -> list[SettingEntry]:
    """Every setting, then every variable that Hermes looks at or that `.env` sets."""
    secrets = list(config.secrets.values())
    settings = [
        SettingEntry(key, hide(key, value, secrets), config.origins[key])
        for key, value in load.flat_values(config.settings).items()
    ]
    key_variables = {p.key_env for p in profiles(config.settings, config.environ).values() if p.key_env}
    names = sorted(key_variables | {name for name in config.dotenv if not is_setting_name(name)})
    return settings + [variable(config, name) for name in names]


def variable(config: Config, name: str) -> SettingEntry:
    """Whether a variable is set, and where; never what to."""
    origin = config.variable_origin(name)
    return SettingEntry(name, "set" if origin else "unset", origin or SettingOrigin.DEFAULT, variable=True)


def setting(config: Config, key: str) -> JSON:
    """The value of a setting or a whole section, without secrets; ConfigError if there is no such key."""
    path = schema.require_path(key)
    value: JSON = config.settings.model_dump(mode="json")
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return hide(key, value, list(config.secrets.values()))


def note_on_change(config: Config, key: str) -> str | None:
    """A note to print after a key was changed: that the change is overridden, or perhaps misspelt."""
    if not is_variable(key):
        name = load.variable_for(schema.find_path(key.split(".")) or (key,))
        return f"the variable {name} still overrides it" if name in config.environ else None
    if config.variable_origin(key) is SettingOrigin.ENVIRONMENT:
        return "the environment's value still overrides it"
    key_variables = {p.key_env for p in profiles(config.settings, config.environ).values() if p.key_env}
    near = nearest(key, key_variables, cutoff=0.85)
    if near and key not in key_variables:
        return f"no provider uses {key}; {did_you_mean(near)}"
    return None


def as_text(value: JSON) -> str:
    """Text as it is where one line of it can be printed; anything else as JSON."""
    if isinstance(value, str) and value.isprintable():
        return value
    return json.dumps(value)
