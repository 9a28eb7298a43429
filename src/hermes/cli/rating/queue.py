"""`hermes rate queue`: makes a queue, lists queues, and rates from one with single keys."""

from __future__ import annotations

from typing import Any

import click

from hermes.cli.filters import FilterOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import RenamedOption, add_options, json_option


@click.command("queue")
@click.argument("name", default="default")
@add_options(
    click.option(
        "--rule",
        type=click.Choice(["random", "spread", "disagreement", "uncertainty", "query"]),
        help="What comes first; for a new queue. random, groups whose rewards differ, judge against person, "
        "what a reward model is unsure of, or what the filters select.",
    ),
    click.option(
        "--mode", type=click.Choice(["thumb", "score", "pair", "step"]), help="What is asked; default: thumb."
    ),
    click.option("--seed", type=int, help="Seed of the order; 0 if unset."),
    click.option(
        "--raters",
        "raters_per_item",
        type=click.IntRange(min=1),
        help="Number of raters for an item; 1 if unset.",
    ),
    click.option(
        "--repeats",
        "repeat_share",
        type=click.FloatRange(0, 0.5),
        help="Share of items that are shown twice; 0.05 if unset.",
    ),
    click.option("--limit", type=click.IntRange(min=1), help="Most items of a new queue."),
    click.option("--where", multiple=True, metavar="CONDITION", help="As for 'hermes export'; repeatable."),
    click.option(
        "--all",
        "--rated-too",
        "rated_too",
        cls=RenamedOption,
        is_flag=True,
        help="Also what a person has rated already.",
    ),
    click.option("--rater", help="Your name; default: your user name."),
    click.option("--list", "list_", is_flag=True, help="List the queues and their progress."),
    click.option("--make", is_flag=True, help="Make the queue or add new items, and rate nothing."),
    click.option("--delete", is_flag=True, help="Delete the queue; the ratings given in it stay."),
    click.option("--yes", is_flag=True, help="Do not ask before --delete."),
)
@model_options(FilterOptions)
@json_option
def queue(filters: FilterOptions, **params: Any) -> None:
    """Rate one item after another with single keys, from the queue NAME.

    A queue that does not exist is made, from the rule and the filters; naming it again continues it. Two
    people never have the same item at once.
    """
    from hermes.cli.rating.queue_run import delete_queue, list_queues, make_queue, rate_items

    if params["list_"]:
        list_queues(params["as_json"])
        return
    if params["delete"]:
        delete_queue(params["name"], yes=params["yes"], as_json=params["as_json"])
        return
    make_queue(filters.build(), params)
    if not params["make"]:
        rate_items(params["name"], params["rater"])
