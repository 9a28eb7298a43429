"""The YAML file of `hermes compress`: the flags by their names, or the predecessor's sections.

Of the predecessor's keys, those that have a meaning here are used and the known others are passed over; a
key that neither knows is an error. Leave to run a tokenizer's code is only ever given on the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hermes.errors import UsageError

_OLD = {
    "tokenizer.name": "tokenizer",
    "compression.target_max_tokens": "target_max_tokens",
    "compression.summary_target_tokens": "summary_target_tokens",
    "protected_turns.last_n_turns": "protect_last_turns",
    "summarization.model": "model",
    "summarization.base_url": "base_url",
    "processing.max_concurrent_requests": "concurrency",
}
_PASSED_OVER = {
    "tokenizer": ("trust_remote_code",),
    "protected_turns": ("first_system", "first_human", "first_gpt", "first_tool"),
    "summarization": ("api_key_env", "temperature", "max_retries", "retry_delay"),
    "output": ("add_summary_notice", "summary_notice_text", "output_suffix"),
    "processing": ("num_workers", "skip_under_target", "save_over_limit", "per_trajectory_timeout"),
    "metrics": ("enabled", "per_trajectory", "output_file"),
}


def merge_config_file(ctx: click.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """Values from --config, under what the command line says itself."""
    path: Path | None = flags["config_file"]
    if path is None:
        return flags
    from hermes.config import yaml_file

    merged = dict(flags)
    by_name = {parameter.name: parameter for parameter in ctx.command.params}
    by_name |= {"input": by_name["source"]}
    for name, value in _settings(yaml_file.parse(path.read_text("utf-8"), str(path)).data):
        parameter = by_name.get(_OLD.get(name, name.replace("-", "_")))
        if parameter is None or parameter.name in (None, "config_file", "trust_remote_code"):
            raise UsageError(f"{path}: unknown key '{name}'", "the keys are the flags of 'hermes compress'")
        if ctx.get_parameter_source(parameter.name) is not ParameterSource.COMMANDLINE:
            merged[parameter.name] = parameter.type_cast_value(ctx, value)
    return merged


def _settings(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; the predecessor's that mean nothing here are left out."""
    for name, value in data.items():
        if not isinstance(value, dict):
            yield name, value
            continue
        for key, inner in value.items():
            if key not in _PASSED_OVER.get(name, ()):
                yield f"{name}.{key}", inner
