"""Runs `hermes train rlhf` and `ppo --reward-model`: PPO against a reward model, with its processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import FilterOptions, RenamedOption, make_options
from hermes.cli.train.run import (
    print_result,
    progress_lines,
    run_spec,
    start_engine,
    stop_on_signals,
    train_rl,
)

if TYPE_CHECKING:
    from hermes.cli.train.options import RlOptions
    from hermes.config.load import Config
    from hermes.rl.rlhf import RlhfPlan
    from hermes.training.critic import CriticConfig
    from hermes.training.rl import PreferenceCheck
    from hermes.training.session import TrainingRunSpec


def _split_names(ctx: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


DEFAULT_KL = 0.02
"""A reward that is learned is exploited without a penalty; 0.01 to 0.05 is usual."""
RLHF = (
    click.option(
        "--prompts",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="What to answer: JSONL, JSON, CSV or Parquet. Default: the stored trajectories that match.",
    ),
    click.option(
        "--reference",
        metavar="WEIGHTS",
        help="What the KL is measured from: base, or weights as in --start. Default: --start, else base.",
    ),
    click.option(
        "--rollouts-per-prompt",
        default=8,
        show_default=True,
        type=click.IntRange(min=2),
        help="Size of a group.",
    ),
    click.option(
        "--env-replicas",
        "--environments",
        "environments",
        cls=RenamedOption,
        default=1,
        show_default=True,
        type=click.IntRange(min=1),
        help="Number of environment processes.",
    ),
    click.option(
        "--max-turns",
        default=1,
        show_default=True,
        type=click.IntRange(min=1),
        help="Model calls in a rollout.",
    ),
    click.option(
        "--answer-tokens",
        default=200,
        show_default=True,
        type=click.IntRange(min=1),
        help="Longest answer of one model call.",
    ),
    click.option(
        "--toolsets",
        "--toolset",
        "toolsets",
        cls=RenamedOption,
        multiple=True,
        callback=_split_names,
        help="Toolsets of the agent, separated by commas. Default: none.",
    ),
    click.option("--system-prompt", default="", help="System prompt of every rollout."),
    click.option(
        "--temperature",
        default=1.0,
        show_default=True,
        type=click.FloatRange(min=0, min_open=True),
        help="Sampling temperature of rollouts.",
    ),
    click.option(
        "--true-reward",
        default="",
        metavar="FILE.py:FUNCTION",
        help="Measures what the reward model stands for; it is reported and never trained on.",
    ),
    click.option(
        "--preferences",
        multiple=True,
        type=click.Path(path_type=Path, exists=True),
        help="Pairs (trl-preference) on which agreement with people is measured; repeatable.",
    ),
    click.option(
        "--critic",
        is_flag=True,
        help="The baseline is a critic adapter with the reward model's kind of read-out, which learns beside "
        "the policy; without it the baseline is the group's (--advantage).",
    ),
    click.option(
        "--gae-lambda",
        default=0.95,
        show_default=True,
        type=click.FloatRange(0, 1),
        help="λ of the critic's advantages: 1 is the reward less the value; below it the critic counts more.",
    ),
    click.option(
        "--critic-rate",
        type=click.FloatRange(min=0, min_open=True),
        help="Learning rate of the critic; the policy's if unset.",
    ),
    click.option("--no-early-stop", is_flag=True, help="Go on although the run is over-optimised."),
)


@dataclass(frozen=True, kw_only=True)
class RlhfOptions:
    """What an RLHF run has beside the options of its trainer."""

    reward_model: str
    prompts: Path | None
    reference: str | None
    rollouts_per_prompt: int
    environments: int
    max_turns: int
    answer_tokens: int
    toolsets: tuple[str, ...]
    system_prompt: str
    temperature: float
    true_reward: str
    preferences: tuple[Path, ...]
    critic: bool
    gae_lambda: float
    critic_rate: float | None
    no_early_stop: bool
    filters: FilterOptions


def read_rlhf_options(params: Mapping[str, Any]) -> RlhfOptions:
    return make_options(RlhfOptions, {**params, "filters": make_options(FilterOptions, params)})


def check_no_rlhf_options(ctx: click.Context) -> None:
    """UsageError if the command line has an option that only RLHF reads: it would have no effect."""
    from click.core import ParameterSource

    from hermes.errors import UsageError

    names = {field.name for field in fields(RlhfOptions)} - {"reward_model", "filters"}
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{parameter.opts[0]} has no effect without a reward model", "add --reward-model NAME"
            )


def run_rlhf(rl: RlOptions, options: RlhfOptions) -> None:
    from hermes.config.load import load
    from hermes.rl.rlhf import rlhf_processes
    from hermes.training.monitor.overoptimisation import OveroptimisationGuard

    config = load()
    run = run_spec(config, rl, "rlhf")
    # Other runs publish to the same engine: the environments ask for this run's weights by its own name.
    run = replace(run, lora=replace(run.lora, policy=run.lora.policy or run.id))
    stop = stop_on_signals(run)
    with progress_lines(rl) as progress, start_engine(config, run, rl, progress):
        reference = _reference(config, options, run)
        plan = _plan(config, rl, options, run)
        with rlhf_processes(plan, run.folder, stop) as processes:
            progress(
                f"answers to {plan.prompts}, scored by {plan.reward_model}; logs in {run.folder / 'logs'}"
            )
            result = train_rl(
                config,
                run,
                replace(rl, api_url=processes.api_url),
                progress,
                stop,
                reference=reference,
                guard=None if options.no_early_stop else OveroptimisationGuard(),
                measure_kl=True,
                critic=_critic(rl, options),
                preference=_preference(rl, options, run, reference),
            )
    print_result(run, result, rl)
    if processes.failure is not None:
        raise processes.failure


def _plan(config: Config, rl: RlOptions, options: RlhfOptions, run: TrainingRunSpec) -> RlhfPlan:
    from hermes.rl.rlhf import RlhfPlan

    return RlhfPlan(
        reward_model=options.reward_model,
        prompts=(options.prompts or _stored_prompts(config, options, run)).absolute(),
        policy=run.lora.policy or run.id,
        engine_url=run.connection.url,
        tokenizer=run.lora.base_model,
        batch_size=rl.batch_size,
        num_steps=rl.num_steps,
        group_size=options.rollouts_per_prompt,
        environments=options.environments,
        max_turns=options.max_turns,
        answer_tokens=options.answer_tokens,
        toolsets=options.toolsets,
        system_prompt=options.system_prompt,
        temperature=options.temperature,
        true_reward=_absolute_function(options.true_reward),
        seed=rl.seed,
        max_staleness=min(1, rl.max_staleness),
    )


def _absolute_function(reference: str) -> str:
    file, _, function = reference.rpartition(":")
    return f"{Path(file).absolute()}:{function}" if file else reference


def _stored_prompts(config: Config, options: RlhfOptions, run: TrainingRunSpec) -> Path:
    from hermes.config.paths import db_path
    from hermes.data.export.select import TrajectorySelection
    from hermes.store import Reader
    from hermes.training.preference.prompts import write_prompts

    path = run.folder / "prompts.jsonl"
    if not path.exists():  # a resumed run has the prompts it began with
        with Reader(db_path(config.home)) as reader:
            write_prompts(reader, TrajectorySelection(options.filters.build(), only_completed=False), path)
    return path


def _reference(config: Config, options: RlhfOptions, run: TrainingRunSpec) -> str | None:
    """None: the base model."""
    from hermes.training.start_weights import find_start

    if options.reference is None:
        return run.lora.start
    if options.reference == "base":
        return None
    return find_start(options.reference, config.home, run.lora.base_model)


def _critic(rl: RlOptions, options: RlhfOptions) -> CriticConfig | None:
    """None: the baseline is the group's."""
    if not options.critic:
        return None
    from hermes.envs.tokenise import load_tokenizer
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.critic import CriticConfig
    from hermes.training.preference.readout import ReadOut, readout_tokens

    renderer = ChatRenderer.of(load_tokenizer(rl.base_model), "hermes", rl.max_tokens)
    words = readout_tokens(ReadOut(), renderer)
    return CriticConfig(words, options.gae_lambda, options.critic_rate, rl.max_tokens)


def _preference(
    rl: RlOptions, options: RlhfOptions, run: TrainingRunSpec, reference: str | None
) -> PreferenceCheck | None:
    if not options.preferences:
        return None
    from collections import Counter

    from hermes.envs.tokenise import load_tokenizer
    from hermes.models.render.chat import ChatRenderer
    from hermes.training.preference.examples import pair_examples
    from hermes.training.preference.held_out import HeldOutPreference
    from hermes.training.preference.reference import BASE
    from hermes.training.preference.sources import from_files

    rows = pair_examples(
        from_files(options.preferences).pairs,
        ChatRenderer.of(load_tokenizer(rl.base_model), "hermes", rl.max_tokens),
        longest=rl.max_tokens,
        eval_share=0.0,
        left_out=Counter(),
        min_rows=1,
    )
    return HeldOutPreference(run, rows.train, reference or BASE)
