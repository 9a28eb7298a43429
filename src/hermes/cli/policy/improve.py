"""`hermes improve`: from ratings to a tested policy, in one command."""

from __future__ import annotations

from typing import Any

import click

from hermes.cli.options import DeviceChoice, RenamedOption, add_options, json_option, stored_variables

_POSITIVE = click.IntRange(min=1)


@click.command()
@add_options(
    click.option(
        "--method",
        type=click.Choice(["dpo", "kto", "rlhf"]),
        help="How to learn; chosen by the number of ratings if unset.",
    ),
    click.option(
        "--error-rate",
        default=0.01,
        show_default=True,
        type=click.FloatRange(0, 0.5, min_open=True),
        help="Chance of promoting one that is no better, over all candidates against one policy.",
    ),
    click.option(
        "--eval-share",
        default=0.3,
        show_default=True,
        type=click.FloatRange(0, 0.9, min_open=True),
        help="Share of tasks whose ratings are held out for the decision.",
    ),
    click.option(
        "--all", "everything", is_flag=True, help="All ratings, not only those since the last time."
    ),
    click.option("--reward", metavar="FILE.py:FUNCTION", help="Scores answers to held-out tasks."),
    click.option("--judge", metavar="MODEL", help="Chat model that scores answers instead, from 1 to 5."),
    click.option("--reward-model", metavar="URL", help="Served reward model that scores answers instead."),
    click.option("--rubric", help="What the judge is to look at."),
    click.option("--base-model", default="hermes/smollm2", show_default=True, help="Name of the base model."),
    click.option(
        "--service",
        "--base-url",
        "service",
        cls=RenamedOption,
        metavar="URL",
        help="An engine or service that runs already.",
    ),
    click.option(
        "--device",
        type=DeviceChoice(),
        default="auto",
        show_default=True,
        help="Device of the engine that is started.",
    ),
    click.option("--rank", default=32, show_default=True, type=_POSITIVE, help="LoRA rank."),
    click.option(
        "--learning-rate",
        type=click.FloatRange(min=0, min_open=True),
        help="Chosen by the model's size if unset.",
    ),
    click.option("--epochs", default=3, show_default=True, type=_POSITIVE, help="Passes over the ratings."),
    click.option("--max-steps", type=_POSITIVE, help="Stop after this many steps."),
    click.option(
        "--batch-size",
        default=16,
        show_default=True,
        type=_POSITIVE,
        help="Rows a step; with rlhf, prompts a step.",
    ),
    click.option("--max-tokens", default=2048, show_default=True, type=_POSITIVE, help="Longest sequence."),
    click.option(
        "--answer-tokens",
        default=200,
        show_default=True,
        type=_POSITIVE,
        help="Longest answer that is compared.",
    ),
    click.option(
        "--limit",
        "--examples",
        "examples",
        cls=RenamedOption,
        default=16,
        show_default=True,
        type=click.IntRange(min=0),
        help="Most held-out tasks that are answered.",
    ),
    click.option("--seed", default=0, show_default=True, help="Seed of the training."),
    click.option("--watch", is_flag=True, help="Wait for ratings, and improve whenever there are enough."),
    click.option(
        "--min-new", default=50, show_default=True, type=_POSITIVE, help="New ratings that --watch waits for."
    ),
)
@json_option
@stored_variables
def improve(**params: Any) -> None:
    """Learn from the ratings since the last time, compare with the current policy, promote only if better.

    The decision is a sequential test on held-out ratings; a report says what was learned and what got worse.
    """
    from hermes.cli.policy.improve_run import run_improve, watch

    if params["watch"]:
        watch(params)
    else:
        run_improve(params)
