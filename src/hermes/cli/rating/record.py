"""Records, takes back and lists ratings for `hermes rate`."""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hermes.cli.tables import columns
from hermes.config.load import Config, load
from hermes.config.paths import db_path
from hermes.core import Rating, RatingKind
from hermes.core.rating import to_json
from hermes.data.preference.pairs import PreferenceSource
from hermes.data.preference.rows import PreferenceRows, read_rows
from hermes.errors import UsageError
from hermes.ratings import RatingDesk, RatingDraft, agreement
from hermes.ratings.agreement import AgreementReport, Share
from hermes.safety.output.columns import wrapped
from hermes.safety.redact import Redactor
from hermes.safety.text import printable
from hermes.store import Reader

if TYPE_CHECKING:
    from hermes.cli.rating.options import VerdictOptions

_EVIDENCE = (PreferenceSource.CHOICE, PreferenceSource.RATING, PreferenceSource.RETRY)


def open_desk(config: Config) -> RatingDesk:
    """On the store of this home; known secrets are removed from comments."""
    return RatingDesk.open(db_path(config.home), Redactor(config.secrets).text)


def rater_name(rater: str | None) -> str:
    return rater or getpass.getuser()


def record_one(options: VerdictOptions, as_json: bool) -> None:
    config = load()
    if options.verdict is None and options.over is None:
        raise UsageError(
            f"what is '{options.trajectory}'?",
            "hermes rate TRAJECTORY good, bad or 1 to 5; or --over ANOTHER",
        )
    with Reader(db_path(config.home)) as reader:
        draft = RatingDraft(
            reader.resolve(options.trajectory),
            options.verdict or "a",
            rater_name(options.rater),
            other_id=None if options.over is None else reader.resolve(options.over),
            step_index=options.step,
            **options.model_dump(
                include={"other_step", "per_step", "strength", "comment", "labels", "replaces"}
            ),
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


def print_stats(queue: str | None, as_json: bool) -> None:
    from hermes.policies.improve import rating_progress

    config = load()
    with Reader(db_path(config.home)) as reader:
        if queue is not None:
            reader.queue_settings(queue)
        ratings = reader.all_ratings() if queue is None else reader.queue_ratings(queue)
        report = agreement.report(ratings)
        rows = read_rows(reader, origins=_EVIDENCE)
        needed = rating_progress(config.home, reader)
    counts = {
        "pairs": len(rows.pairs),
        "good": sum(span.desirable is True for span in rows.spans),
        "bad": sum(span.desirable is False for span in rows.spans),
    }
    if as_json:
        from hermes.ratings.http import agreement_json

        left_out = dict(rows.left_out)
        click.echo(
            json.dumps(
                {**agreement_json(report), "rows": counts, "left_out": left_out, "needed": asdict(needed)}
            )
        )
        return
    if not report.raters:
        click.echo("nothing is rated yet; hermes rate last good, or hermes rate queue")
        return
    click.echo(_raters(report))
    click.echo(_agreement(report))
    click.echo(_rows(rows, counts))
    click.echo(wrapped(f"hermes improve: {needed}"))


def _raters(report: AgreementReport) -> str:
    table = [("rater", "kind", "ratings", "seconds", "first shown wins", "same again")]
    for entry in report.raters:
        seconds = "" if entry.seconds is None else f"{entry.seconds:.1f}"
        shares = (_share(entry.first_shown), _share(entry.repeats))
        table.append((printable(entry.rater), entry.source.value, str(entry.ratings), seconds, *shares))
    return columns(table)


def _agreement(report: AgreementReport) -> str:
    lines = [""]
    for scale in report.scales:
        if scale.alpha is not None:
            lines.append(
                f"{scale.kind.value}: Krippendorff's alpha {scale.alpha:.3f} ({scale.scale.value},"
                f" {scale.items} items rated by two or more)"
            )
        for (first, second), kappa in scale.kappa.items():
            lines.append(f"  Cohen's kappa {printable(first)} and {printable(second)}: {kappa:.3f}")
    if not any(scale.items for scale in report.scales):
        lines.append("no two people rated the same thing yet")
    for machine, share in report.machines.items():
        lines.append(f"{printable(machine)} agrees with people: {_share(share)}")
    if report.first_shown.total:
        lines.append(f"position bias: the one shown first wins {_share(report.first_shown)}; 50 % is none")
    return "\n".join(lines)


def _rows(rows: PreferenceRows, counts: dict[str, int]) -> str:
    lines = [
        "",
        f"training rows: {counts['pairs']} pairs, {counts['good']} good and {counts['bad']} bad answers",
    ]
    lines += [f"  left out: {count} ({reason})" for reason, count in rows.left_out.most_common(8)]
    return "\n".join(lines)


def _share(share: Share) -> str:
    if share.value is None:
        return ""
    low, high = share.interval
    return f"{share.value:.0%} of {share.total} ({low:.0%} to {high:.0%})"
