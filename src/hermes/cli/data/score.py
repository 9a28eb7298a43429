"""`hermes trajectories score`: score what was recorded again, with another reward function."""

from __future__ import annotations

import asyncio
import json

import click

from hermes.cli.filters import FilterOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import json_option, stored_variables


@click.command()
@click.option("--reward", required=True, metavar="FILE.py:FUNCTION", help="As for 'hermes batch'.")
@click.option(
    "--dataset-file",
    metavar="FILE",
    help="The tasks, for functions that use what is expected.",
)
@model_options(FilterOptions)
@json_option
@stored_variables
def score(filters: FilterOptions, reward: str, dataset_file: str | None, as_json: bool) -> None:
    """Score recorded trajectories again and add the rewards.

    Earlier rewards stay.

    The function sees the trajectory; the sandbox of the rollout no longer exists.

    \b
    hermes trajectories score --run first --reward my_reward.py:reward --dataset-file tasks.jsonl
    """
    from hermes.agent.build import open_writer
    from hermes.batch.overview import by_message
    from hermes.batch.rescore import rescore
    from hermes.batch.reward import load_reward
    from hermes.batch.tasks import read_dataset
    from hermes.cli.batch.status_text import failure_lines
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.store import Reader

    function = load_reward(reward)
    rows = {row.key: row for row in read_dataset(dataset_file).rows} if dataset_file else {}
    config = load()
    conditions = filters.build()
    with Reader(db_path(config.home)) as reader, open_writer(config) as writer, waiting("scoring"):
        result = asyncio.run(rescore(writer, reward, function, reader.trajectories(conditions), rows))
    failures = by_message(result.errors)
    if as_json:
        facts = {"scored": len(result.rewards), "mean_reward": result.mean, "skipped": result.skipped}
        click.echo(json.dumps({**facts, "grader_failures": failures, "rewards": result.rewards}))
    else:
        mean = "" if result.mean is None else f", mean reward {result.mean:.3f}"
        skipped = f", {result.skipped} left out (running, or infrastructure failed)" if result.skipped else ""
        click.echo(f"{len(result.rewards)} scored{mean}{skipped}")
        for name, text in failure_lines(failures, "unscored:", "the reward function failed"):
            click.echo(f"  {name} {text}" if name else f"  {text}")
    if failures and not result.rewards:
        click.get_current_context().exit(1)
