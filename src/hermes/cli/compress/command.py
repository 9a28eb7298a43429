"""`hermes compress`: fit trajectories to a token budget; the YAML file that can hold its options.

The file holds the flags by their names, or the sections of hermes-agent's trajectory_compression.yaml. Of
hermes-agent's keys, those with a meaning here are used and the other known ones are ignored; any other key
is an error. Permission to run a tokenizer's code is only taken from the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from hermes.cli.model_options import fields_of_keys, model_options
from hermes.cli.options import json_option, stored_variables
from hermes.data.compress.options import CompressOptions

_HERMES_AGENT_KEYS = {
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


_FILE_HELP = "with these flags, or hermes-agent's trajectory_compression.yaml"


def read_compress_file(path: Path) -> Mapping[str, Any]:
    """The values of a YAML file by the names of the options."""
    from hermes.config import yaml_file
    from hermes.disk.files import read_text

    keys = dict(_dotted_keys(yaml_file.parse(read_text(path) or "", str(path)).data))
    return fields_of_keys(
        CompressOptions, keys, path, "compress", _HERMES_AGENT_KEYS, ("argument", "trust_remote_code")
    )


def _dotted_keys(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values, without hermes-agent's keys that have no meaning here."""
    for name, value in data.items():
        if not isinstance(value, dict):
            yield name, value
            continue
        for key, setting in value.items():
            if key not in _IGNORED_KEYS.get(name, ()):
                yield f"{name}.{key}", setting


@click.command()
@model_options(CompressOptions, read_file=read_compress_file, file_help=_FILE_HELP)
@json_option
@click.pass_context
@stored_variables
def compress(ctx: click.Context, /, options: CompressOptions, as_json: bool) -> None:
    """Fit trajectories to a token budget.

    Tool outputs are folded first, then thinking, then the tool outputs of the last turns; decisions and
    instructions go last. Rows that do not fit are written to a separate file with the reason. Originals
    are never changed.
    """
    from hermes.cli.compress.run import run

    ctx.exit(run(options, as_json=as_json))
