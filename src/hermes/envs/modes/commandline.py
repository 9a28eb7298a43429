"""An environment's command line: `serve`, `process` or `evaluate`, and every setting as a flag.

    python my_env.py serve --env.group_size 8 --openai.base_url http://localhost:8001/v1 --config run.yaml

Flags override the --config file, which overrides `config_init`; so does RL_API_URL, for the address of the
trajectory API. An unknown key of the file is an error that names it. If the file also has the trainer's
settings (a section `tinker`), its model server is the base model's; `serve` then samples the policy trained
from it. The value of a flag may begin with a dash (`--env.inference_weight -1`), a flag without a value is
true, and `None` is null.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hermes.config import yaml_file
from hermes.config.environment import export_stored
from hermes.config.providers import trajectory_api_url
from hermes.core.names import did_you_mean, nearest
from hermes.disk.files import read_text
from hermes.envs.failures import EnvironmentRunError
from hermes.envs.modes.hooks import EnvHooks
from hermes.envs.servers.config import APIServerConfig, ServerManagerConfig
from hermes.errors import ConfigError, HermesError, UsageError
from hermes.safety.output.logs import log_to_stderr

if TYPE_CHECKING:
    from pydantic import BaseModel

T = TypeVar("T")
E = TypeVar("E", bound=EnvHooks)
MODES = ("serve", "process", "evaluate")
_BARE = ("slurm", "testing", "config", "help")
_SECTIONS = ("env", "openai", "teacher", "tinker", "run")
"""Sections of a --config file; the last two belong to the trainer and the supervisor."""
_WITHOUT_EFFECT = {"openai": ("weight",)}
"""Keys of hermes-agent's files that are ignored."""
_POLICY = "policy"
"""The engine's model name for the newest weights in training."""


@dataclass
class Arguments:
    mode: str
    config: Path | None = None
    spaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Values as written on the command line, by section (env, openai, teacher) and field."""
    manager: dict[str, Any] = field(default_factory=dict)
    help: bool = False


def main(cls: type[EnvHooks], argv: Sequence[str] | None = None) -> None:
    """Runs the command line of a file started with `python`, and exits the process with its exit code."""
    try:
        export_stored()
        run(cls, sys.argv[1:] if argv is None else argv)
    except HermesError as error:
        from hermes.safety.text import printable

        sys.stderr.write(f"error: {printable(error.message)}\n")
        if error.hint:
            sys.stderr.write(f"  fix: {printable(error.hint)}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def run(cls: type[EnvHooks], argv: Sequence[str]) -> None:
    """The same without exiting the process: errors are raised."""
    arguments = parse(argv)
    if arguments.help:
        sys.stdout.write(usage(cls))
        return
    log_to_stderr(logging.INFO, "%(name)s: ")
    for noisy in ("httpx", "httpx2", "openai", "httpcore", "httpcore2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    env, settings = build(cls, arguments)
    if arguments.mode == "serve":
        asyncio.run(env.env_manager())
    elif arguments.mode == "process":
        asyncio.run(env.process_manager())
    else:
        _save_settings(env, settings)
        asyncio.run(env._run_evaluate())


def parse(argv: Sequence[str]) -> Arguments:
    words = list(argv)
    arguments = Arguments(mode="")
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            arguments.help = True
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals:
                value = words.pop(0) if words and not words[0].startswith("--") else "true"
            _set_flag(arguments, name.replace("-", "_"), value)
        elif not arguments.mode and word in MODES:
            arguments.mode = word
        else:
            raise UsageError(f"'{word}' is neither a mode nor a flag.", f"The modes are {', '.join(MODES)}.")
    if not arguments.mode and not arguments.help:
        raise UsageError("no mode was given.", f"Begin with {', '.join(MODES[:-1])} or {MODES[-1]}.")
    return arguments


def _set_flag(arguments: Arguments, name: str, value: str) -> None:
    space, dot, key = name.partition(".")
    if dot:
        arguments.spaces.setdefault(space, {})[key] = value
    elif name == "config":
        arguments.config = Path(value)
    elif name in ServerManagerConfig.model_fields:
        arguments.manager[name] = value
    else:
        raise UsageError(f"there is no flag --{name}.", _suggest(name, _BARE))


def build(cls: type[E], arguments: Arguments) -> tuple[E, dict[str, Any]]:
    """The environment with its settings resolved, and the settings."""
    defaults, servers = _run_authors_code("config_init", cls.config_init)
    written = _read_yaml(arguments.config)
    if arguments.mode == "serve" and "tinker" in written:
        written = _sample_policy(written)
    spaces = {"env", "openai"} | ({"teacher"} if hasattr(cls, "teacher_config_init") else set())
    for space in arguments.spaces:
        if space not in spaces:
            raise UsageError(
                f"there is no flag --{space}.*.", f"Settings begin with {', '.join(sorted(spaces))}."
            )
    config = _merge(
        type(defaults),
        "env",
        {**defaults.model_dump(), **_mode_defaults(cls, arguments.mode, defaults), **_api_address()},
        written.get("env") or {},
        arguments.spaces.get("env", {}),
    )
    server_configs = resolve_servers(servers, written.get("openai"), arguments.spaces.get("openai", {}))
    in_file = {key: written[key] for key in ServerManagerConfig.model_fields if key in written}
    manager = _merge(ServerManagerConfig, "", {}, in_file, arguments.manager)
    extra: dict[str, Any] = {}
    if "teacher" in spaces:
        teachers = cls.teacher_config_init()  # type: ignore[attr-defined]
        extra["teacher_server_configs"] = resolve_servers(
            teachers, written.get("teacher"), arguments.spaces.get("teacher", {})
        )
    settings = {"env": config, "openai": server_configs, "slurm": manager.slurm, "testing": manager.testing}
    extra |= {"slurm": manager.slurm, "testing": manager.testing}
    env: E = _run_authors_code(
        "the constructor", partial(cast(Any, cls), config, server_configs, **_accepted_options(cls, extra))
    )
    env.check_settings()
    if arguments.mode == "process":
        env.process_mode = True
    return env, settings


def _run_authors_code(name: str, call: Callable[[], T]) -> T:
    """Runs code of the environment's author; what it raises becomes an EnvironmentRunError."""
    try:
        return call()
    except HermesError:
        raise
    except Exception as error:  # an author's code may raise anything
        logging.getLogger(__name__).exception("%s failed", name)
        raise EnvironmentRunError(f"{name} failed: {type(error).__name__}: {error}") from error


def _accepted_options(cls: type[EnvHooks], options: dict[str, Any]) -> dict[str, Any]:
    """The options that the constructor accepts: some environments omit the last ones."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return options
    named = {parameter.name for parameter in parameters}
    return {name: value for name, value in options.items() if name in named}


def _mode_defaults(cls: type[EnvHooks], mode: str, defaults: Any) -> dict[str, Any]:
    """Defaults of a mode, which file and command line override."""
    changed: dict[str, Any] = {}
    if defaults.wandb_name is None and cls.name is not None:
        changed["wandb_name"] = cls.name
    if mode == "process":
        changed |= {"ensure_scores_are_not_same": False, "include_messages": True}
        if defaults.data_path_to_save_groups is None:
            changed["data_path_to_save_groups"] = f"data/{cls.name or 'groups'}.jsonl"
    return changed


def _api_address() -> dict[str, str]:
    """The address in RL_API_URL: the user's, so it overrides the author's in config_init."""
    url = trajectory_api_url(os.environ)
    return {} if url is None else {"rollout_server_url": url}


def resolve_servers(default: Any, written: Any, flags: dict[str, Any]) -> Any:
    """The servers of config_init, overridden by the file (one or a list) and by flags (only one)."""
    several = written if isinstance(written, list) and len(written) > 1 else None
    if several is None and isinstance(default, list) and len(default) > 1:
        several = default
    if several is not None:
        if flags:
            raise UsageError(
                "--openai.* sets up one server, but there are several.",
                "Set them under 'openai' in the --config file, as a list.",
            )
        if several is default:
            return default
        return [_merge(APIServerConfig, "openai", {}, server, {}) for server in several]
    server = written[0] if isinstance(written, list) and written else written or {}
    if not server and not flags and not isinstance(default, list):
        return default
    base = (default[0] if default else APIServerConfig()) if isinstance(default, list) else default
    config_type = type(base) if isinstance(base, APIServerConfig) else APIServerConfig
    config = _merge(config_type, "openai", base.model_dump(), server, flags)
    return [config] if isinstance(default, list) or config.base_url else config


def _merge(
    model: type[BaseModel], space: str, base: dict[str, Any], written: Any, flags: dict[str, Any]
) -> Any:
    from pydantic import ValidationError

    if not isinstance(written, dict):
        message = f"'{space}' in the --config file is not a list of settings."
        raise ConfigError(message, f"Write it as '{space}:' with a line 'name: value' for each setting.")
    prefix = f"--{space}." if space else "--"
    for key in flags:
        if key not in model.model_fields:
            raise UsageError(f"there is no flag {prefix}{key}.", _suggest(key, model.model_fields, prefix))
    parsed_flags = {key: _parse_value(model, key, text) for key, text in flags.items()}
    written = {key: value for key, value in written.items() if key not in _WITHOUT_EFFECT.get(space, ())}
    for key in written:
        if key not in model.model_fields and model.model_config.get("extra") != "allow":
            dotted = f"{space}.{key}" if space else key
            raise ConfigError(
                f"the --config file has an unknown key '{dotted}'.",
                _suggest(key, model.model_fields, f"{space}." if space else ""),
            )
    try:
        return model(**{**base, **written, **parsed_flags})
    except ValidationError as error:
        first = error.errors()[0]
        key, reason = ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
        problem = f"{prefix}{key} is {first['input']!r}" if key else f"{prefix}* are inconsistent"
        hint = "Its type and default: --help after the environment's name."
        raise ConfigError(f"{problem}: {reason}.", hint) from error


def _parse_value(model: type[BaseModel], key: str, text: Any) -> Any:
    if text == "None":
        return None
    types = _field_types(model.model_fields[key].annotation)
    if str not in types and text[:1] in ("[", "{"):
        return yaml_file.parse_scalar(text, f"--{key}")
    if str not in types and list in types:
        return [part for part in text.split(",") if part]
    return text


def _field_types(annotation: Any) -> set[Any]:
    """The types of a field; of containers only the outer type."""
    parts = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin in (list, dict, tuple, set):
        return {origin}
    return set().union(*map(_field_types, parts)) if parts and origin is not typing.Literal else {annotation}


def _read_yaml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    text = read_text(path)
    if text is None:
        raise ConfigError(f"{path} cannot be read: there is no such file.", "Check --config.")
    written = dict(yaml_file.parse(text, str(path)).data)
    accepted = (*_SECTIONS, *ServerManagerConfig.model_fields)
    for key in written:
        if key not in accepted:
            raise ConfigError(f"{path} has an unknown key '{key}'.", _suggest(key, accepted, ""))
    return written


def _sample_policy(written: dict[str, Any]) -> dict[str, Any]:
    """For hermes-agent's file of environment and trainer, where the server samples the trained weights."""
    base_model = (written.get("env") or {}).get("tokenizer_name")
    servers = written.get("openai") or {}
    servers = servers if isinstance(servers, list) else [servers]
    base_names = (None, base_model, (written["tinker"] or {}).get("base_model"))
    changed = [
        {"server_type": "sglang", **server, "model_name": _POLICY}
        if server.get("model_name") in base_names
        else server
        for server in servers
    ]
    if base_model:
        changed = [{"tokenizer_name": base_model, **server} for server in changed]
    return {**written, "openai": changed}


def _save_settings(env: EnvHooks, settings: dict[str, Any]) -> None:
    """Writes evaluate_config.yaml beside the results, without API keys."""
    if env.config.data_dir_to_save_evals is None:
        return
    from ruamel.yaml import YAML

    def to_data(value: Any) -> Any:
        if isinstance(value, list):
            return [to_data(element) for element in value]
        return value.model_dump(mode="json", exclude={"api_key"}) if hasattr(value, "model_dump") else value

    folder = Path(env.config.data_dir_to_save_evals)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "evaluate_config.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump({key: to_data(value) for key, value in settings.items()}, file)


def _suggest(name: str, names: Any, prefix: str = "--") -> str:
    return did_you_mean([f"{prefix}{candidate}" for candidate in nearest(name, names)], "See --help.")


def usage(cls: type[EnvHooks]) -> str:
    """All flags with their defaults; what a variable sets is shown with its value."""
    defaults, _ = cls.config_init()
    defaults = defaults.model_copy(update=_api_address())
    lines = [f"usage: {Path(sys.argv[0]).name} {{{','.join(MODES)}}} [--config FILE] [flags]", ""]
    for space, model, values in (
        ("env.", type(defaults), defaults),
        ("openai.", APIServerConfig, APIServerConfig()),
        ("", ServerManagerConfig, ServerManagerConfig()),
    ):
        for name, setting in model.model_fields.items():
            lines.append(f"  --{space}{name}  {setting.description or ''} [{getattr(values, name)}]")
    return "\n".join(lines) + "\n"
