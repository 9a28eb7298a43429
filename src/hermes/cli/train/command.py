"""`hermes train`: adapters from exported data, the store, or live rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hermes.cli.filters import FilterOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import CommandGroup, json_option, stored_variables
from hermes.training.options import (
    DpoOptions,
    KtoOptions,
    PpoOptions,
    RewardOptions,
    RlhfOptions,
    RlOptions,
    SftOptions,
)

_SECTIONS = "with the sections env, openai and tinker"


def _read_run_file(path: Path) -> Mapping[str, Any]:
    from hermes.rl.config.run_file import train_values

    return train_values(path)


@click.group(cls=CommandGroup)
def train() -> None:
    """Train a LoRA adapter through the Tinker API: a local engine, or the managed service.

    The same command with the same --name resumes a run where it stopped.
    """


@train.command()
@model_options(SftOptions, FilterOptions)
@json_option
@stored_variables
def sft(options: SftOptions, filters: FilterOptions, as_json: bool) -> None:
    """Fine-tune on the assistant's messages.

    They come from FILES (any export), or from stored trajectories that match.
    """
    from hermes.cli.train.run import run_on_rows
    from hermes.training.launch import train_sft

    run_on_rows("sft", "reading the examples", train_sft, options, filters, as_json=as_json)


@train.command()
@model_options(DpoOptions, FilterOptions)
@json_option
@stored_variables
def dpo(options: DpoOptions, filters: FilterOptions, as_json: bool) -> None:
    """Train on preference pairs (DPO).

    They come from FILES (trl-preference), or from stored verdicts.
    """
    from hermes.cli.train.run import run_on_rows
    from hermes.training.preference.launch import train_dpo

    run_on_rows("dpo", "reading the pairs", train_dpo, options, filters, as_json=as_json)


@train.command()
@model_options(KtoOptions, FilterOptions)
@json_option
@stored_variables
def kto(options: KtoOptions, filters: FilterOptions, as_json: bool) -> None:
    """Train on answers that are good or bad (KTO).

    They come from FILES (trl-unpaired), or from stored ratings.
    """
    from hermes.cli.train.run import run_on_rows
    from hermes.training.preference.launch import train_kto

    run_on_rows("kto", "reading the rated answers", train_kto, options, filters, as_json=as_json)


@train.command()
@model_options(RewardOptions, FilterOptions)
@json_option
@stored_variables
def reward(options: RewardOptions, filters: FilterOptions, as_json: bool) -> None:
    """Train a reward model.

    It learns from pairs or ratings in FILES, or from stored verdicts.
    """
    from hermes.cli.train.run import run_reward

    run_reward(options, filters, as_json=as_json)


@train.command()
@model_options(RlOptions, read_file=_read_run_file, file_help=_SECTIONS)
@json_option
@stored_variables
def grpo(options: RlOptions, as_json: bool) -> None:
    """Train on groups of scored rollouts from the trajectory API."""
    from hermes.cli.train.run import run_rl

    run_rl(options, as_json=as_json)


@train.command(hidden=True)
@model_options(PpoOptions, read_file=_read_run_file, file_help=_SECTIONS)
@json_option
@stored_variables
def ppo(options: PpoOptions, as_json: bool) -> None:
    """Like grpo, with --loss ppo."""
    from hermes.cli.train.run import run_rl

    run_rl(options, as_json=as_json)


@train.command()
@model_options(RlhfOptions, FilterOptions, read_file=_read_run_file, file_help=_SECTIONS)
@json_option
@stored_variables
def rlhf(options: RlhfOptions, filters: FilterOptions, as_json: bool) -> None:
    """Train with PPO against a reward model.

    The policy answers prompts, with a KL penalty towards the reference.

    Starts the trajectory API, the reward model and the environments, and stops them at the end. The baseline
    of an answer is the mean of the answers to its prompt, or a critic (--critic).
    """
    from hermes.cli.train.run import run_rlhf

    run_rlhf(options, filters, as_json=as_json)
