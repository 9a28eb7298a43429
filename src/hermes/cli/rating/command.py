"""`hermes rate`: rates one trajectory, or two; its subcommands queue, list, undo, stats and auto."""

from __future__ import annotations

from typing import Literal

import click
from pydantic import BaseModel, ConfigDict

from hermes.cli.filters import FilterOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import RenamedOption, json_option, stored_variables
from hermes.config.option import option

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


class VerdictOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    trajectory: str = option(..., "", argument=True)
    verdict: (
        Literal["good", "bad", "neutral", "first-bad", "tie", "both-bad", "1", "2", "3", "4", "5"] | None
    ) = option(None, "", argument=True)
    over: str | None = option(None, "Compare with this one: TRAJECTORY is the better.", metavar="TRAJECTORY")
    strength: int | None = option(None, "1 slightly, 2 clearly, 3 much better.", ge=1, le=3)
    step: int | None = option(None, "The answer that this step belongs to.", ge=0)
    other_step: int | None = option(None, "Step of the trajectory that --over names.", ge=0)
    per_step: bool = option(False, "The verdict is on that step alone, not on its turn.")
    comment: str | None = option(None, "Reason.")
    labels: tuple[str, ...] = option((), "A word of your own; repeatable.", "--label")
    rater: str | None = option(None, "Name of the rater; default: your user name.")
    replaces: str | None = option(None, "Id of your rating that this one corrects.", metavar="RATING")


@rate.command(_VERDICT, hidden=True)
@model_options(VerdictOptions)
@json_option
def verdict(options: VerdictOptions, as_json: bool) -> None:
    """Rate TRAJECTORY as VERDICT."""
    from hermes.cli.rating.record import record_one

    record_one(options, as_json)


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


class RaterOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    reward: str | None = option(None, "A rule whose rewards are stored, or FILE.py:FUNCTION.", metavar="NAME")
    judge: str | None = option(None, "A chat model that is asked for 1 to 5.", metavar="MODEL")
    reward_model: str | None = option(None, "A served reward model: 'hermes reward serve'.", metavar="URL")
    rubric: str | None = option(None, "What the judge is to look at.")
    limit: int | None = option(None, "Most trajectories.", ge=1)


@rate.command("auto")
@model_options(RaterOptions, FilterOptions)
@json_option
@stored_variables
def auto(options: RaterOptions, filters: FilterOptions, as_json: bool) -> None:
    """Let a reward rule, a judge or a reward model rate.

    Its ratings are marked as such, with its agreement with people.
    """
    from hermes.cli.rating.auto import run_auto

    run_auto(filters.build(), {**options.model_dump(), "as_json": as_json})


class QueueOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str = option("default", "", argument=True, metavar="[NAME]")
    rule: Literal["random", "spread", "disagreement", "uncertainty", "query"] | None = option(
        None,
        "What comes first; for a new queue. random, groups whose rewards differ, judge against person, "
        "what a reward model is unsure of, or what the filters select.",
    )
    mode: Literal["thumb", "score", "pair", "step"] | None = option(None, "What is asked; default: thumb.")
    seed: int | None = option(None, "Seed of the order; 0 if unset.")
    raters_per_item: int | None = option(None, "Number of raters for an item; 1 if unset.", "--raters", ge=1)
    repeat_share: float | None = option(
        None, "Share of items that are shown twice; 0.05 if unset.", "--repeats", ge=0, le=0.5
    )
    limit: int | None = option(None, "Most items of a new queue.", ge=1)
    where: tuple[str, ...] = option((), "As for 'hermes export'; repeatable.", metavar="CONDITION")
    rated_too: bool = option(False, "Also what a person has rated already.", "--all", former=("--rated-too",))
    rater: str | None = option(None, "Your name; default: your user name.")
    listing: bool = option(False, "List the queues and their progress.", "--list")
    make: bool = option(False, "Make the queue or add new items, and rate nothing.")
    delete: bool = option(False, "Delete the queue; the ratings given in it stay.")
    yes: bool = option(False, "Do not ask before --delete.")


@rate.command("queue")
@model_options(QueueOptions, FilterOptions)
@json_option
def queue(options: QueueOptions, filters: FilterOptions, as_json: bool) -> None:
    """Rate one item after another with single keys, from the queue NAME.

    A queue that does not exist is made, from the rule and the filters; naming it again continues it. Two
    people never have the same item at once.
    """
    from hermes.cli.rating.queue_run import delete_queue, list_queues, make_queue, rate_items

    if options.listing:
        list_queues(as_json)
        return
    if options.delete:
        delete_queue(options.name, yes=options.yes, as_json=as_json)
        return
    make_queue(filters.build(), options, as_json)
    if not options.make:
        rate_items(options.name, options.rater)
