"""The resolved configuration: defaults, config.yaml, .env, environment and flags, in rising order.

Each value remembers where it came from. Loading only reads: a missing home or file is empty, a broken one is
an error that names the location. Any setting can be given as an environment variable (or in .env) named
HERMES_ and its key in capitals, with two underscores for each dot: HERMES_SANDBOX__BACKEND.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from hermes.config import env_file, paths, schema, secrets, yaml_file
from hermes.config.environment import PREFIX, is_setting_name, without_stored
from hermes.config.providers import OPENAI_URL_VARIABLE, fill_builtin
from hermes.config.schema import KeyPath
from hermes.config.settings import Settings
from hermes.config.validate import SettingProblem, validate
from hermes.core import JSON, JSONObject
from hermes.core.names import did_you_mean
from hermes.core.texts import Texts
from hermes.disk.files import read_text
from hermes.errors import ConfigError, UsageError


class SettingOrigin(StrEnum):
    """Where a value came from, weakest first."""

    DEFAULT = "default"
    FILE = "config.yaml"
    DOTENV = ".env"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of a command."""

    settings: Settings
    origins: dict[str, SettingOrigin]
    """Dotted key of every value in `settings` → where it came from."""
    home: Path
    environ: dict[str, str] = field(repr=False)
    """The process environment over `.env`."""
    dotenv: frozenset[str]
    """Names set in `.env` and not overridden by the process environment."""
    secrets: dict[str, str] = field(repr=False)
    """Name of a variable or setting → secret value; what must never be shown or recorded."""
    texts: Texts = field(default_factory=dict)
    """The texts of the policy that answers; none for a model by itself."""

    def variable_origin(self, name: str) -> SettingOrigin | None:
        """Where a variable comes from; None if it is unset or empty."""
        if not self.environ.get(name):
            return None
        return SettingOrigin.DOTENV if name in self.dotenv else SettingOrigin.ENVIRONMENT


@dataclass(frozen=True, slots=True)
class _Value:
    value: JSON
    origin: SettingOrigin
    location: str
    """For errors: file with line and column, variable or flag."""


_Layer = dict[KeyPath, _Value]


def load(overrides: Mapping[str, JSON] | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Reads and merges all sources. `overrides` are flags: dotted key → value.

    ConfigError names the first problem's file, line and key; UsageError is for a bad flag's key.
    """
    process = without_stored(os.environ if environ is None else environ)
    home = paths.home(process)
    dotenv_path, config_path = paths.env_path(home), paths.config_path(home)
    dotenv = env_file.parse(read_text(dotenv_path) or "", str(dotenv_path))
    document = yaml_file.parse(read_text(config_path) or "", str(config_path))
    merged = _merge(
        (
            _flatten(document.data, SettingOrigin.FILE, str(config_path)),
            _from_variables(dotenv, SettingOrigin.DOTENV, f"{dotenv_path}: "),
            _from_variables(process, SettingOrigin.ENVIRONMENT, "environment variable "),
            _from_flags(overrides or {}),
        )
    )
    settings, problems = validate(as_settings_data(_unflatten(merged)))
    if settings is None:
        raise _invalid(problems, merged, document)
    full = {**dotenv, **process}
    return Config(
        settings=settings,
        origins=_origins(settings, merged),
        home=home,
        environ=full,
        dotenv=frozenset(dotenv) - frozenset(process),
        secrets=secrets.find(full, settings),
    )


def as_settings_data(data: JSONObject) -> JSONObject:
    """Raw data ready for `validate`: built-in providers completed."""
    providers = data.get("providers")
    return {**data, "providers": fill_builtin(providers)} if isinstance(providers, dict) else data


def without_empty_sections(data: JSONObject) -> JSONObject:
    """Data where a section with nothing under it (all its lines commented out, say) is left out."""
    return _unflatten(_flatten(data, SettingOrigin.FILE, ""))


def flat_values(settings: Settings) -> dict[str, JSON]:
    """Every value by its dotted key, in the model's order."""
    values = _flatten(settings.model_dump(mode="json"), SettingOrigin.DEFAULT, "")
    return {schema.dotted(path): item.value for path, item in values.items()}


def variable_for(path: Sequence[str]) -> str:
    """The environment variable that sets this key."""
    return PREFIX + "__".join(path).upper()


def key_of(variable: str) -> str | None:
    """The dotted key of the setting this variable sets, if there is one."""
    path = _path_of(variable)
    return None if path is None else schema.dotted(path)


def stray_variables(environ: Mapping[str, str]) -> list[str]:
    """HERMES_ variables that set nothing: another program's, or misspelt."""
    return sorted(name for name in environ if is_setting_name(name) and _path_of(name) is None)


def _from_variables(variables: Mapping[str, str], origin: SettingOrigin, location: str) -> _Layer:
    layer: _Layer = {}
    if origin is SettingOrigin.DOTENV and paths.HOME_VARIABLE in variables:
        raise ConfigError(f"{location}{paths.HOME_VARIABLE} cannot be set here", "set it in your shell")
    if url := variables.get(OPENAI_URL_VARIABLE):
        layer["providers", "openai", "base_url"] = _Value(url, origin, f"{location}{OPENAI_URL_VARIABLE}")
    for name, text in sorted(variables.items()):  # a whole entry before the variables that refine it
        if not is_setting_name(name) or not text:
            continue
        path = _path_of(name)
        if path is not None:
            at = f"{location}{name}"
            layer = _merge((layer, _flatten_at(path, schema.read_value(path, text), origin, at)))
        elif "__" in name or origin is SettingOrigin.DOTENV:
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            near = [variable_for(suggestion.split(".")) for suggestion in schema.suggest(key)]
            raise ConfigError(f"{location}{name} sets no known setting", did_you_mean(near))
    return layer


def _path_of(variable: str) -> KeyPath | None:
    return schema.find_path(variable.removeprefix(PREFIX).lower().split("__"))


def _from_flags(overrides: Mapping[str, JSON]) -> _Layer:
    layer: _Layer = {}
    for key, value in overrides.items():
        path = schema.find_path(key.split("."))
        if path is None:
            raise UsageError(f"unknown setting '{key}'", schema.unknown_key_hint(key))
        layer = _merge((layer, _flatten_at(path, value, SettingOrigin.FLAG, f"flag for {key}")))
    return layer


def _flatten(data: JSONObject, origin: SettingOrigin, location: str) -> _Layer:
    layer: _Layer = {}
    for name, value in data.items():
        layer.update(_flatten_at((name,), value, origin, location))
    return layer


def _flatten_at(path: KeyPath, value: JSON, origin: SettingOrigin, location: str) -> _Layer:
    if isinstance(value, dict) and value:
        inner: _Layer = {}
        for name, item in value.items():
            inner.update(_flatten_at((*path, name), item, origin, location))
        return inner
    if value is None and schema.is_container(path):
        return {}
    return {path: _Value(value, origin, location)}


def _merge(layers: Sequence[_Layer]) -> _Layer:
    """Later layers win, value by value; a value also replaces those above and below its key."""
    merged: _Layer = {}
    for layer in layers:
        for path in layer:
            for overridden in [key for key in merged if key[: len(path)] == path or path[: len(key)] == key]:
                del merged[overridden]
        merged.update(layer)
    return merged


def _unflatten(layer: _Layer) -> JSONObject:
    data: JSONObject = {}
    for path, item in layer.items():
        inner = data
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = item.value
    return data


def _origins(settings: Settings, merged: _Layer) -> dict[str, SettingOrigin]:
    values = _flatten(settings.model_dump(mode="json"), SettingOrigin.DEFAULT, "")
    return {
        schema.dotted(path): merged[path].origin if path in merged else SettingOrigin.DEFAULT
        for path in values
    }


def _invalid(problems: Sequence[SettingProblem], merged: _Layer, document: yaml_file.Document) -> ConfigError:
    problem = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    source = _source(problem, merged)
    if source.origin is SettingOrigin.FILE:
        location = document.location(problem.path) or source.location
        hint = f"'hermes config set {schema.dotted(problem.path)} VALUE' or 'hermes config edit'"
    else:
        location, hint = source.location, "correct or remove it"
    return ConfigError(f"{location}: {problem.message}{more}", problem.hint or hint)


def _source(problem: SettingProblem, merged: _Layer) -> _Value:
    """The strongest value at, around or below the problem's key."""
    for end in range(len(problem.path), 0, -1):
        prefix = problem.path[:end]
        for path, item in reversed(merged.items()):
            if path[:end] == prefix or path == prefix[: len(path)]:
                return item
    raise AssertionError(f"no source for {problem}")
