"""The options that every trainer has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes.cli.options import RenamedOption

POSITIVE = click.IntRange(min=1)


class LoraTargets(click.ParamType[tuple[str, ...]]):
    """attn,mlp,unembed or some of them, as one word or as a list of a YAML file."""

    name = "A,B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        targets = tuple(dict.fromkeys(str(part).strip() for part in parts))
        if unknown := [target for target in targets if target not in ("attn", "mlp", "unembed")]:
            self.fail(f"'{unknown[0]}' is not one of attn, mlp, unembed", param, ctx)
        return targets


RATE = click.FloatRange(min=0, min_open=True)
COMMON = (
    click.option(
        "--base-model",
        default="hermes/smollm2",
        show_default=True,
        help="Name of the base model at the engine.",
    ),
    click.option(
        "--service",
        "--base-url",
        "base_url",
        cls=RenamedOption,
        metavar="URL|managed",
        help="Tinker service. Default: TINKER_BASE_URL, else the engine on this machine.",
    ),
    click.option(
        "--name", metavar="NAME", help="Name of the run; a name that exists resumes it. Default: a new one."
    ),
    click.option(
        "--run-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of the run; runs/NAME in the home if unset.",
    ),
    click.option(
        "--start",
        metavar="WEIGHTS",
        help="Initial weights: tinker://…, a PEFT folder, a run's name, policy (the promoted one) or "
        "policy:ID.",
    ),
    click.option("--policy-name", metavar="NAME", help="An additional name for the newest weights."),
    click.option(
        "--rank", "--lora-rank", "rank", default=32, show_default=True, type=POSITIVE, help="LoRA rank."
    ),
    click.option(
        "--lora-alpha",
        default=32.0,
        show_default=True,
        type=RATE,
        help="Scale of the adapter, times the rank; another one only at a Hermes engine.",
    ),
    click.option(
        "--lora-targets",
        default="attn,mlp",
        show_default=True,
        type=LoraTargets(),
        help="Parts of the model that have an adapter, out of attn, mlp, unembed.",
    ),
    click.option(
        "--seed", default=0, show_default=True, help="Seed of the adapter and of the order of rows."
    ),
    click.option(
        "--learning-rate", type=RATE, help="Peak learning rate; chosen by the model's size if unset."
    ),
    click.option(
        "--schedule",
        default="constant",
        type=click.Choice(["constant", "linear", "cosine"]),
        show_default=True,
        help="How the learning rate changes over the steps.",
    ),
    click.option(
        "--warmup-steps", default=0, type=click.IntRange(min=0), help="Steps until the rate is at its peak."
    ),
    click.option("--max-tokens", default=2048, show_default=True, type=POSITIVE, help="Longest sequence."),
    click.option(
        "--checkpoint-every", default=25, show_default=True, type=POSITIVE, help="Steps between checkpoints."
    ),
    click.option(
        "--keep",
        default=3,
        show_default=True,
        type=POSITIVE,
        help="Number of newest checkpoints to keep, beside the best.",
    ),
    click.option(
        "--eval-every", default=10, show_default=True, type=POSITIVE, help="Steps between evaluations."
    ),
    click.option(
        "--sink",
        "extra_sinks",
        multiple=True,
        type=click.Choice(["wandb", "wandb-offline", "tensorboard", "trackio"]),
        help="Where metrics go beside the store and metrics.jsonl; repeatable.",
    ),
    click.option(
        "--project",
        "--wandb-project",
        "project",
        default="hermes",
        show_default=True,
        help="Project name in the sinks.",
    ),
    click.option("--wandb-group", metavar="NAME", help="W&B group; default: the run's name."),
    click.option("--no-wandb", is_flag=True, help="Send nothing to W&B, even if its key is set."),
    click.option("--title", metavar="NAME", help="The run's title in the sinks; default: its name."),
)

OFFLINE = (
    click.option("--epochs", default=1, show_default=True, type=POSITIVE, help="Passes over the rows."),
    click.option("--max-steps", type=POSITIVE, help="Stop after this many steps."),
    click.option("--batch-size", default=16, show_default=True, type=POSITIVE, help="Rows a step."),
    click.option("--patience", type=POSITIVE, help="Evaluations without a new best that end the run."),
    click.option("--parser", default="hermes", show_default=True, help="Format of tool calls."),
)
"""The options of trainers on stored rows."""
