"""The options of `hermes batch` as one object, and the YAML file that can hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hermes.cli.options import make_options, merge_below_command_line, parameter_name
from hermes.errors import UsageError

_SETTINGS = {
    "max_turns": "limits.max_turns",
    "timeout": "limits.timeout_s",
    "max_tokens": "sampling.max_tokens",
    "temperature": "sampling.temperature",
    "reasoning_effort": "sampling.reasoning_effort",
    "sandbox": "sandbox.backend",
}


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Fields are named like the flags; `hermes batch --help` documents them."""

    dataset_file: str
    run_name: str
    model: str | None
    base_url: str | None
    distribution: str | None
    toolsets: str | None
    allow_missing_toolsets: bool
    samples_per_prompt: int
    seed: int | None
    max_samples: int | None
    num_workers: int
    concurrency: int
    executor: str
    ray_address: str | None
    ray_insecure: bool
    max_turns: int
    timeout: float | None
    max_tokens: int | None
    temperature: float | None
    max_cost: float | None
    max_tries: int
    reasoning_effort: str | None
    reasoning_disabled: bool
    ephemeral_system_prompt: str | None
    prefill_messages_file: Path | None
    providers_allowed: str | None
    providers_ignored: str | None
    providers_order: str | None
    provider_sort: str | None
    reward: str | None
    require_reasoning: bool
    drop_unknown_tools: bool
    only_completed: bool
    keep_min_turns: int | None
    keep_max_turns: int | None
    min_reward: float | None
    dedupe: bool
    sandbox: str | None
    output_dir: Path
    resume: bool
    accept_changes: bool
    as_json: bool

    @property
    def folder(self) -> Path:
        """The run's folder."""
        name = self.run_name
        if name in (".", "..") or "/" in name or "\\" in name or not name.isprintable():
            raise UsageError(f"'{name}' cannot name a run", "use letters, digits, '-', '_' and '.'")
        return self.output_dir / name

    def settings(self) -> dict[str, Any]:
        """The dotted settings that the flags stand for."""
        flags = {key: getattr(self, name) for name, key in _SETTINGS.items()}
        settings = {key: value for key, value in flags.items() if value is not None}
        if self.reasoning_disabled:
            settings["sampling.reasoning_effort"] = "none"
        return settings

    def provider_routing(self) -> dict[str, Any]:
        """OpenRouter's `provider` object; empty without routing flags."""
        lists = {
            "only": self.providers_allowed,
            "ignore": self.providers_ignored,
            "order": self.providers_order,
        }
        routing: dict[str, Any] = {
            key: [name.strip() for name in names.split(",")] for key, names in lists.items() if names
        }
        if self.provider_sort:
            routing["sort"] = self.provider_sort
        return routing


def read_batch_options(ctx: click.Context, params: Mapping[str, Any]) -> BatchOptions:
    """The options of a command line, with the values of --config where the command line does not set them."""
    path: Path | None = params["config_file"]
    if path is not None:
        from hermes.config import yaml_file

        keys = yaml_file.parse(path.read_text("utf-8"), str(path)).data
        file_values = {parameter_name(ctx, path, key): value for key, value in keys.items()}
        params = merge_below_command_line(ctx, params, file_values)
    for name in ("dataset_file", "run_name"):
        if not params[name]:
            raise UsageError(f"--{name.replace('_', '-')} is missing", "see 'hermes batch --help'")
    return make_options(BatchOptions, params)
