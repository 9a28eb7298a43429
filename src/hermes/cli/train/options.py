"""The options of `hermes train` as objects, and the reference's YAML file, which grpo and ppo also read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from hermes.cli.options import FilterOptions, make_options, merge_below_command_line
from hermes.config.settings import MANAGED


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of every trainer, named like the commands' parameters, which --help documents."""

    base_model: str
    base_url: str | None
    name: str | None
    run_dir: Path | None
    start: str | None
    policy_name: str | None
    rank: int
    lora_alpha: float
    lora_targets: tuple[str, ...]
    seed: int
    learning_rate: float | None
    schedule: str
    warmup_steps: int
    max_tokens: int
    checkpoint_every: int
    keep: int
    eval_every: int
    extra_sinks: tuple[str, ...]
    project: str
    wandb_group: str | None
    no_wandb: bool
    title: str | None
    batch_size: int
    epochs: int
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class SftOptions(TrainOptions):
    files: tuple[Path, ...]
    filters: FilterOptions
    max_steps: int | None
    eval_share: float
    patience: int | None
    parser: str
    everything: bool


@dataclass(frozen=True, kw_only=True)
class RlOptions(TrainOptions):
    """The options of grpo, and of ppo, whose loss is fixed."""

    loss: str
    with_engine: bool
    engine_dtype: str
    engine_memory_gib: float | None
    engine_kv_gib: float | None
    api_url: str | None
    face_port: int | None
    api_patience_s: float
    env_patience_s: float
    lease_s: float
    num_steps: int
    advantage: str
    correction_cap: float
    proof: str
    clip: tuple[float, float] | None
    kl: float
    max_staleness: int
    eval_command: str | None
    eval_environments: tuple[Path, ...]
    eval_configs: tuple[Path, ...]
    eval_patience: int | None
    eval_folder: Path | None
    teacher_url: str | None
    teacher_model: str | None
    distill: float
    reward_weight: float
    rollout_table_every: int


def read_sft_options(params: Mapping[str, Any]) -> SftOptions:
    return make_options(SftOptions, {**params, "filters": make_options(FilterOptions, params)})


def read_rl_options(ctx: click.Context, params: Mapping[str, Any], *, loss: str | None = None) -> RlOptions:
    """The options of a command line, with the values of --config where the command line does not set them."""
    path: Path | None = params["config_file"]
    sampling_url: str | None = None
    if path is not None:
        from hermes.rl.config.run_file import TRAIN_OPTIONS, read_run_file

        file = read_run_file(path)
        values = {option: file.values.get(field) for field, option in TRAIN_OPTIONS.items()}
        offpolicy_batches = file.values.get("env.max_batches_offpolicy")
        values["max_staleness"] = None if offpolicy_batches is None else offpolicy_batches + 1
        values["no_wandb"] = file.values.get("env.use_wandb") is False or None
        values["wandb_group"] = file.wandb_group
        values["extra_sinks"] = file.values.get("tinker.sinks")
        if (values["batch_size"] or 0) < 1:
            values["batch_size"] = None  # -1 in an environment's settings means the trainer's default
        accepted = {parameter.name for parameter in ctx.command.params}
        file_values = {
            name: value for name, value in values.items() if value not in (None, "") and name in accepted
        }
        params = merge_below_command_line(ctx, params, file_values)
        sampling_url = file.values.get("openai.base_url")
    options = make_options(RlOptions, {**params, **({"loss": loss} if loss else {})})
    return _choose_service(options, sampling_url)


def _choose_service(options: RlOptions, sampling_url: str | None) -> RlOptions:
    """With --with-engine: the managed service and an OpenAI port here, or an engine on loopback."""
    if not options.with_engine or options.base_url:
        return options
    from hermes.config.load import load
    from hermes.training.service.client import KEY_VARIABLE, LOCAL_URL, URL_VARIABLE

    environ = load().environ
    if environ.get(URL_VARIABLE):
        return options
    port = urlsplit(sampling_url or LOCAL_URL).port or urlsplit(LOCAL_URL).port
    if environ.get(KEY_VARIABLE):
        proxy_port = port if options.face_port is None else options.face_port
        return replace(options, base_url=MANAGED, face_port=proxy_port)
    return replace(options, base_url=f"http://127.0.0.1:{port}")
