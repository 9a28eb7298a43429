"""`hermes rate`: rates one trajectory, or two; its subcommands queue, list, undo, stats and auto."""

from __future__ import annotations

from typing import Any

import click

from hermes.cli.filters import FilterOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import RenamedOption, add_options, json_option, stored_variables

_VERDICT = "verdict"


class RateGroup(click.Group):
    """`hermes rate TRAJECTORY VERDICT` and `hermes rate SUBCOMMAND` in one: ids are no subcommands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_VERDICT, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in super().list_commands(ctx) if name != _VERDICT]


@click.group(cls=RateGroup, subcommand_metavar="TRAJECTORY VERDICT | COMMAND [ARGS]...")
def rate() -> None:
    """Rate TRAJECTORY (an id, its beginning or end, or 'last') as good, bad, or 1 to 5.

    \b
    hermes rate last good                       its last answer was good
    hermes rate last 2 --step 4 --comment "…"   the answer that step 4 belongs to
    hermes rate last bad --step 4 --per-step    that step alone; first-bad: the first bad step
    hermes rate A --over B --strength 2         A is clearly better than B
    hermes rate A tie --over B                  equal; both-bad: neither is acceptable

    Ratings are appended; of one rater's the newest counts. `hermes rate undo ID` takes one back.
    """


@rate.command(_VERDICT, hidden=True)
@click.argument("trajectory")
@click.argument(
    "verdict",
    required=False,
    type=click.Choice(["good", "bad", "neutral", "first-bad", "tie", "both-bad", "1", "2", "3", "4", "5"]),
)
@add_options(
    click.option("--over", metavar="TRAJECTORY", help="Compare with this one: TRAJECTORY is the better."),
    click.option("--strength", type=click.IntRange(1, 3), help="1 slightly, 2 clearly, 3 much better."),
    click.option("--step", type=click.IntRange(min=0), help="The answer that this step belongs to."),
    click.option(
        "--other-step", type=click.IntRange(min=0), help="Step of the trajectory that --over names."
    ),
    click.option("--per-step", is_flag=True, help="The verdict is on that step alone, not on its turn."),
    click.option("--comment", help="Reason."),
    click.option("--label", "labels", multiple=True, help="A word of your own; repeatable."),
    click.option("--rater", help="Name of the rater; default: your user name."),
    click.option("--replaces", metavar="RATING", help="Id of your rating that this one corrects."),
)
@json_option
def verdict(**params: Any) -> None:
    """Rate TRAJECTORY as VERDICT."""
    from hermes.cli.rating.record import record_one

    record_one(**params)


@rate.command("undo")
@click.argument("rating")
@click.option("--rater", help="Whose rating it is; default: your user name.")
@json_option
def undo(rating: str, rater: str | None, as_json: bool) -> None:
    """Take a rating back; what it had replaced counts again."""
    from hermes.cli.rating.record import undo_one

    undo_one(rating, rater, as_json)


@rate.command("list")
@click.argument("trajectory", required=False)
@click.option(
    "--all",
    "--everything",
    "everything",
    cls=RenamedOption,
    is_flag=True,
    help="Also those that were replaced or withdrawn.",
)
@json_option
def list_(trajectory: str | None, everything: bool, as_json: bool) -> None:
    """List ratings, of all trajectories or of one."""
    from hermes.cli.rating.record import list_ratings

    list_ratings(trajectory, everything, as_json)


@rate.command("stats")
@click.argument("queue", required=False)
@click.option("--queue", "named_queue", hidden=True, help="The same as the argument.")
@json_option
def stats(queue: str | None, named_queue: str | None, as_json: bool) -> None:
    """Show how far raters agree, in all or in the ratings of QUEUE.

    Alpha, kappa, position bias, repeats, seconds an item, and training rows.
    """
    from hermes.cli.rating.record import print_stats

    print_stats(queue or named_queue, as_json)


@rate.command("auto")
@add_options(
    click.option("--reward", metavar="NAME", help="A rule whose rewards are stored, or FILE.py:FUNCTION."),
    click.option("--judge", metavar="MODEL", help="A chat model that is asked for 1 to 5."),
    click.option("--reward-model", metavar="URL", help="A served reward model: 'hermes reward serve'."),
    click.option("--rubric", help="What the judge is to look at."),
    click.option("--limit", type=click.IntRange(min=1), help="Most trajectories."),
)
@model_options(FilterOptions)
@json_option
@stored_variables
def auto(filters: FilterOptions, **params: Any) -> None:
    """Let a reward rule, a judge or a reward model rate.

    Its ratings are marked as such, with its agreement with people.
    """
    from hermes.cli.rating.auto import run_auto

    run_auto(filters.build(), params)


@rate.command("queue")
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
