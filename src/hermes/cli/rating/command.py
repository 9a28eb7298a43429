"""`hermes rate`: rates one trajectory, or two; its subcommands queue, list, undo, stats and auto."""

from __future__ import annotations

import click

from hermes.cli.filters import FilterOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import RenamedOption, WholeSummaries, json_option, stored_variables
from hermes.cli.rating.options import QueueOptions, RaterOptions, VerdictOptions

_VERDICT = "verdict"


class RateGroup(WholeSummaries):
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
    hermes rate last bad --step 4 --per-step    that step alone was bad
    hermes rate A --over B --strength 2         A is clearly better than B
    hermes rate A tie --over B                  equal; both-bad: neither will do

    Ratings are appended; the newest of each rater counts. `hermes rate undo ID` takes one back.
    """


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

    It prints alpha, kappa, position bias, repeats, seconds an item, and training rows.
    """
    from hermes.cli.rating.record import print_stats

    print_stats(queue or named_queue, as_json)


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
