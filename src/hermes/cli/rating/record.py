"""Records, takes back and lists ratings for `hermes rate`."""

from __future__ import annotations

import getpass
import json

import click

from hermes.cli.tables import columns
from hermes.config.load import Config, load
from hermes.config.paths import db_path
from hermes.core import Rating, RatingKind
from hermes.core.rating import to_json
from hermes.errors import UsageError
from hermes.ratings import RatingDesk, RatingDraft
from hermes.safety.redact import Redactor
from hermes.safety.text import printable
from hermes.store import Reader


def open_desk(config: Config) -> RatingDesk:
    """On the store of this home; known secrets are removed from comments."""
    return RatingDesk.open(db_path(config.home), Redactor(config.secrets).text)


def rater_name(rater: str | None) -> str:
    return rater or getpass.getuser()


def record_one(
    trajectory: str,
    verdict: str | None,
    over: str | None,
    strength: int | None,
    step: int | None,
    other_step: int | None,
    per_step: bool,
    comment: str | None,
    labels: tuple[str, ...],
    rater: str | None,
    replaces: str | None,
    as_json: bool,
) -> None:
    config = load()
    if verdict is None and over is None:
        raise UsageError(
            f"what is '{trajectory}'?", "hermes rate TRAJECTORY good, bad or 1 to 5; or --over ANOTHER"
        )
    with Reader(db_path(config.home)) as reader:
        draft = RatingDraft(
            reader.resolve(trajectory),
            verdict or "a",
            rater_name(rater),
            other_id=None if over is None else reader.resolve(over),
            step_index=step,
            other_step=other_step,
            per_step=per_step,
            strength=strength,
            comment=comment,
            labels=labels,
            replaces=replaces,
        )
    with open_desk(config) as desk:
        rating = desk.record(draft)
    if as_json:
        click.echo(json.dumps(to_json(rating)))
    else:
        click.echo(f"rated {describe(rating)}  ({rating.id})")


def undo_one(rating_id: str, rater: str | None, as_json: bool) -> None:
    config = load()
    with open_desk(config) as desk:
        event = desk.undo(rating_id.upper(), rater_name(rater))
    if as_json:
        click.echo(json.dumps(to_json(event)))
    elif event.kind is RatingKind.WITHDRAW:
        click.echo(f"taken back {rating_id}")
    else:
        click.echo(f"taken back {rating_id}; again {describe(event)}")


def list_ratings(trajectory: str | None, everything: bool, as_json: bool) -> None:
    config = load()
    with Reader(db_path(config.home)) as reader:
        trajectory_id = None if trajectory is None else reader.resolve(trajectory)
        ratings = [
            rating
            for rating in reader.all_ratings(everything=everything)
            if trajectory_id in (None, rating.trajectory_id, rating.other_id)
        ]
    if as_json:
        click.echo(json.dumps([to_json(rating) for rating in ratings]))
    elif not ratings:
        click.echo("nothing is rated yet; hermes rate last good")
    else:
        table = [("rating", "by", "verdict", "comment")]
        table += [
            (rating.id, printable(rating.rater), describe(rating), printable(rating.comment or "")[:60])
            for rating in ratings
        ]
        click.echo(columns(table))


def describe(rating: Rating) -> str:
    """One line: what was rated, and how."""
    step = "" if rating.step_index is None else f" step {rating.step_index}"
    match rating.kind:
        case RatingKind.THUMB:
            words = "good" if rating.value > 0 else "bad"
        case RatingKind.STEP:
            words = {1.0: "good", 0.0: "neutral", -1.0: "bad"}[rating.value] + " (this step alone)"
        case RatingKind.FIRST_BAD:
            words = "the first bad step"
        case RatingKind.PAIR if rating.value == 0:
            words = f"as good as {rating.other_id}"
        case RatingKind.PAIR:
            comparative = "better" if rating.value > 0 else "worse"
            words = f"{comparative} than {rating.other_id} by {abs(rating.value):.2g}"
        case RatingKind.BOTH_BAD:
            words = f"bad, and so is {rating.other_id}"
        case RatingKind.WITHDRAW:
            words = f"{rating.replaces} withdrawn"
        case _:
            words = f"{rating.value:g}"
    machine = "" if rating.source.value == "person" else f" [{rating.source.value}]"
    return f"{rating.trajectory_id}{step}: {words}{machine}"
