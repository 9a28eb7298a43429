"""The options of `hermes compress` as one object, and the YAML file that can hold them.

The file holds the flags by their names, or the sections of the predecessor's trajectory_compression.yaml. Of
the predecessor's keys, those with a meaning here are used and the other known ones are ignored; any other key
is an error. Permission to run a tokenizer's code is only taken from the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hermes.cli.options import make_options, merge_below_command_line, parameter_name
from hermes.errors import UsageError

_PREDECESSOR_KEYS = {
    "tokenizer.name": "tokenizer",
    "compression.target_max_tokens": "target_max_tokens",
    "compression.summary_target_tokens": "summary_target_tokens",
    "protected_turns.last_n_turns": "protect_last_turns",
    "summarization.model": "model",
    "summarization.base_url": "base_url",
    "processing.max_concurrent_requests": "concurrency",
}
_IGNORED_KEYS = {
    "tokenizer": ("trust_remote_code",),
    "protected_turns": ("first_system", "first_human", "first_gpt", "first_tool"),
    "summarization": ("api_key_env", "temperature", "max_retries", "retry_delay"),
    "output": ("add_summary_notice", "summary_notice_text", "output_suffix"),
    "processing": ("num_workers", "skip_under_target", "save_over_limit", "per_trajectory_timeout"),
    "metrics": ("enabled", "per_trajectory", "output_file"),
}


@dataclass(frozen=True, kw_only=True)
class CompressOptions:
    """Fields are named like the flags; `hermes compress --help` documents them. `source` is --input."""

    source: str
    output: Path | None
    target_max_tokens: int
    tokenizer: str
    trust_remote_code: bool
    strategy: str
    summary_target_tokens: int
    protect_last_turns: int
    strict_protect: bool
    model: str | None
    base_url: str | None
    concurrency: int
    sample_percent: float
    seed: int
    dry_run: bool
    resume: bool
    as_json: bool


def read_compress_options(ctx: click.Context, params: Mapping[str, Any]) -> CompressOptions:
    """The options of a command line, with the values of --config where the command line does not set them."""
    path: Path | None = params["config_file"]
    if path is not None:
        from hermes.config import yaml_file

        sections = yaml_file.parse(path.read_text("utf-8"), str(path)).data
        file_values = {_parameter_name(ctx, path, key): value for key, value in _dotted_keys(sections)}
        params = merge_below_command_line(ctx, params, file_values)
    return make_options(CompressOptions, {**params, "source": _source(ctx, params)})


def _source(ctx: click.Context, params: Mapping[str, Any]) -> str:
    """The argument, else --input, else the file's `input`."""
    argument, option = params["named_source"], params["source"]
    if argument and ctx.params["source"]:
        raise UsageError(f"the input is named twice: '{argument}' and --input {option}", "name it once")
    if not argument and not option:
        raise UsageError(
            "there is nothing to compress: no input is named",
            "hermes compress FILE, or a folder, a batch run, or a query such as 'run=my_run reward>=0.5'",
        )
    return str(argument or option)


def _parameter_name(ctx: click.Context, path: Path, key: str) -> str:
    key = {"input": "source", **_PREDECESSOR_KEYS}.get(key, key)
    return parameter_name(ctx, path, key, excluded=("config_file", "trust_remote_code"))


def _dotted_keys(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values, without the predecessor's keys that have no meaning here."""
    for name, value in data.items():
        if not isinstance(value, dict):
            yield name, value
            continue
        for key, setting in value.items():
            if key not in _IGNORED_KEYS.get(name, ()):
                yield f"{name}.{key}", setting
