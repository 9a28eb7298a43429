"""`hermes train`: adapters from exported data, the store, or live rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes.cli.options import CommandGroup, add_options, filter_options, json_option, stored_variables
from hermes.cli.train.common import COMMON, OFFLINE, POSITIVE
from hermes.cli.train.preference import dpo, kto, reward
from hermes.cli.train.rlhf import DEFAULT_KL, RLHF

_RL = (
    click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="YAML file with the sections env, openai and tinker; flags win over it.",
    ),
    click.option(
        "--with-engine",
        is_flag=True,
        help="Train at the managed service if TINKER_API_KEY is set, else with an engine started here. "
        "In both cases environments sample `policy` on the port of openai.base_url (8001).",
    ),
    click.option(
        "--engine-dtype",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "float32", "bfloat16"]),
        help="Number type of the base model in the engine of --with-engine.",
    ),
    click.option(
        "--engine-memory-gib",
        type=click.FloatRange(min=0, min_open=True),
        help="Memory of the engine of --with-engine on a CPU, in GiB.",
    ),
    click.option(
        "--engine-kv-gib",
        type=click.FloatRange(min=0, min_open=True),
        help="Memory for the KV cache of the engine of --with-engine, in GiB.",
    ),
    click.option(
        "--group-size",
        type=POSITIVE,
        hidden=True,
        help="Accepted for old command lines; it is the environment's setting.",
    ),
    click.option(
        "--api-url",
        metavar="URL",
        help="The trajectory API; default: RL_API_URL, else http://127.0.0.1:8000.",
    ),
    click.option(
        "--face-port",
        type=click.IntRange(0, 65535),
        help="Serve the newest weights on this port over the OpenAI API, as `policy`.",
    ),
    click.option(
        "--api-patience",
        "api_patience_s",
        default=60.0,
        help="Seconds that the trajectory API may be unreachable; 60 if unset.",
    ),
    click.option(
        "--env-patience",
        "env_patience_s",
        default=1800.0,
        show_default=True,
        type=click.FloatRange(min=1),
        help="Seconds to wait for a batch while no environment is connected; then the run ends.",
    ),
    click.option(
        "--lease",
        "lease_s",
        default=600.0,
        show_default=True,
        type=click.FloatRange(min=1),
        help="Seconds after which the batch of a dead trainer is served again.",
    ),
    click.option("--num-steps", default=100, show_default=True, type=POSITIVE, help="Training steps."),
    click.option("--batch-size", default=128, show_default=True, type=POSITIVE, help="Sequences a step."),
    click.option(
        "--advantage",
        default="mean",
        show_default=True,
        type=click.Choice(["mean", "std", "batch-std", "leave-one-out"]),
        help="What a reward is compared with, and by what the difference is divided.",
    ),
    click.option(
        "--correction-cap",
        default=2.0,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Cap of the importance weight for sampler-trainer mismatch (0: none); cispo's upper bound.",
    ),
    click.option(
        "--proof",
        type=click.Choice(["end", "warn"]),
        default="end",
        show_default=True,
        help="What a fault found by the proof of training does: it ends the run, or it is a warning.",
    ),
    click.option(
        "--clip",
        type=(float, float),
        help="Bounds of the ratio, for ppo, gspo, cispo (instead of the cap).",
    ),
    click.option("--epochs", default=1, show_default=True, type=POSITIVE, help="Updates from one batch."),
    click.option(
        "--kl",
        default=0.0,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Weight of the KL penalty against the base model.",
    ),
    click.option(
        "--max-staleness",
        default=4,
        show_default=True,
        type=click.IntRange(min=0),
        help="Oldest policy that is trained on, in steps.",
    ),
    click.option(
        "--eval-command",
        metavar="CMD",
        help="Command that prints a JSON object; its 'reward' selects the best checkpoint.",
    ),
    click.option(
        "--eval-environment",
        "eval_environments",
        multiple=True,
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Environment whose held-out tasks evaluate the weights; needs --eval-config and --eval-folder; "
        "repeatable.",
    ),
    click.option(
        "--eval-config",
        "eval_configs",
        multiple=True,
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Its configuration, with the server of the policy; one for each environment, in their order.",
    ),
    click.option(
        "--eval-patience",
        type=POSITIVE,
        help="Stop after so many evaluations without a new best; default: never.",
    ),
    click.option(
        "--eval-folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of the environment's own evaluations, which select the best checkpoint.",
    ),
    click.option(
        "--teacher-url", metavar="URL", help="Distil from here: Tinker's API, or SGLang's /generate."
    ),
    click.option(
        "--teacher-model",
        metavar="NAME",
        help="Model at a Tinker API, or an adapter at /generate; default: what /generate serves.",
    ),
    click.option(
        "--distill",
        default=0.0,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Weight of the teacher's logprobs.",
    ),
    click.option(
        "--rollout-table-every",
        default=10,
        show_default=True,
        type=click.IntRange(min=0),
        help="Steps between tables of sampled rollouts at W&B and trackio; 0: none.",
    ),
    click.option(
        "--reward-weight",
        default=1.0,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Weight of the scores; 0: train on the teacher's logprobs only.",
    ),
)


@click.group(cls=CommandGroup)
def train() -> None:
    """Train a LoRA adapter through the Tinker API: a local engine, or the managed service.

    The same command with the same --name resumes a run where it stopped.
    """


@train.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
@add_options(*COMMON, *OFFLINE)
@click.option(
    "--eval-share",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 0.9),
    help="Share of tasks held out for evaluation.",
)
@click.option("--all", "everything", is_flag=True, help="Store: also trajectories that did not complete.")
@filter_options
@json_option
@stored_variables
def sft(**params: Any) -> None:
    """Fine-tune on the assistant's messages.

    They come from FILES (any export), or from stored trajectories that match.
    """
    from hermes.cli.train.options import read_sft_options
    from hermes.cli.train.run import run_sft

    run_sft(read_sft_options(params))


@train.command()
@add_options(*COMMON, *_RL)
@click.option(
    "--loss",
    default="importance_sampling",
    show_default=True,
    type=click.Choice(["importance_sampling", "ppo", "cispo", "gspo"]),
    help="The policy loss.",
)
@json_option
@click.pass_context
@stored_variables
def grpo(ctx: click.Context, /, **params: Any) -> None:
    """Train on groups of scored rollouts from the trajectory API."""
    from hermes.cli.train.options import read_rl_options
    from hermes.cli.train.run import run_rl

    run_rl(read_rl_options(ctx, params))


@train.command()
@click.option("--reward-model", metavar="NAME", help="Train against this reward model, as rlhf does.")
@add_options(*COMMON, *_RL, *RLHF)
@filter_options
@json_option
@click.pass_context
@stored_variables
def ppo(ctx: click.Context, /, **params: Any) -> None:
    """Like grpo, with the clipped loss of PPO. With --reward-model it is rlhf."""
    from hermes.cli.train.options import read_rl_options
    from hermes.cli.train.rlhf import check_no_rlhf_options
    from hermes.cli.train.run import run_rl

    if params["reward_model"]:
        _train_rlhf(ctx, params)
    else:
        check_no_rlhf_options(ctx)
        run_rl(read_rl_options(ctx, params, loss="ppo"))


@train.command()
@click.option(
    "--reward-model",
    required=True,
    metavar="NAME",
    help="A reward model of `hermes train reward`, its folder, or the address of one that is served.",
)
@add_options(*COMMON, *_RL, *RLHF)
@filter_options
@json_option
@click.pass_context
@stored_variables
def rlhf(ctx: click.Context, /, **params: Any) -> None:
    """Train with PPO against a reward model.

    Answers to prompts, with a KL penalty towards the reference.

    Starts the trajectory API, the reward model and the environments, and stops them at the end. The baseline
    of an answer is the mean of the answers to its prompt, or a critic (--critic).
    """
    _train_rlhf(ctx, params)


def _train_rlhf(ctx: click.Context, params: dict[str, Any]) -> None:
    from click.core import ParameterSource

    from hermes.cli.train.options import read_rl_options
    from hermes.cli.train.rlhf import read_rlhf_options, run_rlhf

    if ctx.get_parameter_source("kl") is ParameterSource.DEFAULT:
        params["kl"] = DEFAULT_KL
    run_rlhf(read_rl_options(ctx, params, loss="ppo"), read_rlhf_options(params))


for command in (dpo, kto, reward):
    train.add_command(command)
