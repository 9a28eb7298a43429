"""`hermes train`: adapters from exported data, the store, or live rollouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hermes.cli.data.export_options import FILTER_NAMES
from hermes.cli.options import filter_options, json_option, stored_variables

_POSITIVE = click.IntRange(min=1)
_SOME = click.FloatRange(min=0)
_RATE = click.FloatRange(min=0, min_open=True)
_COMMON = (
    click.option("--base-model", default="hermes/smollm2", show_default=True, help="As the engine names it."),
    click.option("--base-url", metavar="URL", help="Or: managed. Else TINKER_BASE_URL, else local."),
    click.option("--name", metavar="NAME", help="Of the run; the same again: go on. Default: a new one."),
    click.option(
        "--run-dir", type=click.Path(path_type=Path, file_okay=False), help="Default: runs/NAME in the home."
    ),
    click.option(
        "--start", metavar="WEIGHTS", help="To begin with: tinker://…, a PEFT folder, a run's name."
    ),
    click.option("--policy-name", metavar="NAME", help="A name of its own for the newest weights."),
    click.option(
        "--rank", "--lora-rank", "rank", default=32, show_default=True, type=_POSITIVE, help="Of the LoRA."
    ),
    click.option("--seed", default=0, show_default=True),
    click.option("--learning-rate", type=_RATE, help="Default: by the model's size."),
    click.option(
        "--schedule",
        default="constant",
        type=click.Choice(["constant", "linear", "cosine"]),
        show_default=True,
    ),
    click.option("--warmup-steps", default=0, type=click.IntRange(min=0)),
    click.option("--max-tokens", default=2048, show_default=True, type=_POSITIVE, help="Longest sequence."),
    click.option("--checkpoint-every", default=25, show_default=True, type=_POSITIVE, help="Steps."),
    click.option("--keep", default=3, show_default=True, type=_POSITIVE, help="Checkpoints beside the best."),
    click.option("--eval-every", default=10, show_default=True, type=_POSITIVE, help="Steps."),
    click.option(
        "--sink",
        "extra_sinks",
        multiple=True,
        type=click.Choice(["wandb", "wandb-offline", "tensorboard", "trackio"]),
        help="Beside the store and metrics.jsonl; repeatable.",
    ),
    click.option(
        "--project", "--wandb-project", "project", default="hermes", show_default=True, help="For the sinks."
    ),
    click.option("--wandb-group", metavar="NAME", help="Of runs at W&B; default: the run's name."),
    click.option("--no-wandb", is_flag=True, help="Nothing is sent to W&B, whatever key is set."),
    click.option("--title", metavar="NAME", help="Of the run, for the sinks; default: its name."),
)
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
        help="Train at the managed service where TINKER_API_KEY is set, else with an engine that is started "
        "here; either way environments sample `policy` on the port of openai.base_url, 8001.",
    ),
    click.option("--group-size", type=_POSITIVE, hidden=True, help="The environment's; for old commands."),
    click.option(
        "--api-url",
        metavar="URL",
        help="The trajectory API; default: RL_API_URL, else http://127.0.0.1:8000.",
    ),
    click.option(
        "--face-port",
        type=click.IntRange(0, 65535),
        help="Offer the newest weights there over OpenAI's API, as `policy`; for a service that does not.",
    ),
    click.option("--api-patience", "api_patience_s", default=60.0, help="Seconds it may be away; 60."),
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
        help="Seconds after which a batch of a dead trainer is served again; a live one renews it.",
    ),
    click.option("--num-steps", default=100, show_default=True, type=_POSITIVE),
    click.option("--batch-size", default=128, show_default=True, type=_POSITIVE, help="Sequences a step."),
    click.option(
        "--advantage",
        default="mean",
        show_default=True,
        type=click.Choice(["mean", "std", "batch-std", "leave-one-out"]),
    ),
    click.option(
        "--correction-cap",
        default=2.0,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Most weight of a token for sampler-trainer mismatch; 0: no correction. Cispo's upper bound.",
    ),
    click.option(
        "--clip", type=(float, float), help="Bounds of the ratio, for ppo and cispo (in place of the cap)."
    ),
    click.option("--epochs", default=1, show_default=True, type=_POSITIVE, help="Updates from one batch."),
    click.option(
        "--kl",
        default=0.0,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Penalty for leaving the base model.",
    ),
    click.option("--max-staleness", default=4, show_default=True, type=click.IntRange(min=0), help="Steps."),
    click.option(
        "--eval-command",
        metavar="CMD",
        help="Prints a JSON object; its 'reward' decides what is best.",
    ),
    click.option(
        "--eval-folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Where the environment leaves its own evaluations: they decide what is best.",
    ),
    click.option(
        "--teacher-url", metavar="URL", help="Distil from here: Tinker's API, or SGLang's /generate."
    ),
    click.option(
        "--teacher-model",
        metavar="NAME",
        help="Of a Tinker API; where the URL ends in /generate, an adapter. Without: what /generate serves.",
    ),
    click.option(
        "--distill",
        default=0.0,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Weight of the teacher's word.",
    ),
    click.option(
        "--reward-weight",
        default=1.0,
        show_default=True,
        type=click.FloatRange(min=0),
        help="Of the scores; 0: only the teacher teaches.",
    ),
)


def _options(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group()
def train() -> None:
    """Train a LoRA adapter through the Tinker API: a local engine, or the managed service.

    Run the same command again, with the same --name, and it goes on where it stopped.
    """


@train.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True))
@_options(*_COMMON)
@click.option("--epochs", default=1, show_default=True, type=_POSITIVE)
@click.option("--max-steps", type=_POSITIVE, help="Stop after so many.")
@click.option("--batch-size", default=16, show_default=True, type=_POSITIVE, help="Sequences a step.")
@click.option(
    "--eval-share",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 0.9),
    help="Share of tasks held out.",
)
@click.option("--patience", type=_POSITIVE, help="Evaluations without a new best that end the run.")
@click.option("--parser", default="hermes", show_default=True, help="Dialect of tool calls.")
@click.option("--all", "everything", is_flag=True, help="Store: also trajectories that did not complete.")
@filter_options
@json_option
@stored_variables
def sft(**given: Any) -> None:
    """Learn what the assistant said in FILES (any export), or in the store's trajectories that match."""
    from hermes.cli.train.run import run_sft

    given["filters"] = {name: given.pop(name) for name in FILTER_NAMES}
    run_sft(given)


@train.command()
@_options(*_COMMON, *_RL)
@click.option(
    "--loss",
    default="importance_sampling",
    show_default=True,
    type=click.Choice(["importance_sampling", "ppo", "cispo"]),
)
@json_option
@click.pass_context
@stored_variables
def grpo(ctx: click.Context, /, **given: Any) -> None:
    """Learn from groups of scored rollouts that the trajectory API serves."""
    from hermes.cli.train.config import merge_run_file
    from hermes.cli.train.run import run_rl

    run_rl(merge_run_file(ctx, given))


@train.command()
@_options(*_COMMON, *_RL)
@json_option
@click.pass_context
@stored_variables
def ppo(ctx: click.Context, /, **given: Any) -> None:
    """As grpo, with the clipped loss of PPO."""
    from hermes.cli.train.config import merge_run_file
    from hermes.cli.train.run import run_rl

    run_rl({**merge_run_file(ctx, given), "loss": "ppo"})
