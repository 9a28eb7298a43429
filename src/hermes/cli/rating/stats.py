"""`hermes rate stats`: agreement of raters, and the rows that their ratings give."""

from __future__ import annotations

import json

import click

from hermes.cli.tables import columns
from hermes.config.load import load
from hermes.config.paths import db_path
from hermes.data.preference.pairs import PreferenceSource
from hermes.data.preference.rows import PreferenceRows, read_rows
from hermes.ratings import agreement
from hermes.ratings.agreement import AgreementReport, Share
from hermes.safety.text import printable
from hermes.store import Reader

_EVIDENCE = (PreferenceSource.CHOICE, PreferenceSource.RATING, PreferenceSource.RETRY)


def print_stats(queue: str | None, as_json: bool) -> None:
    with Reader(db_path(load().home)) as reader:
        if queue is not None:
            reader.queue_settings(queue)
        ratings = reader.all_ratings() if queue is None else reader.queue_ratings(queue)
        report = agreement.report(ratings)
        rows = read_rows(reader, origins=_EVIDENCE)
    counts = {
        "pairs": len(rows.pairs),
        "good": sum(span.desirable is True for span in rows.spans),
        "bad": sum(span.desirable is False for span in rows.spans),
    }
    if as_json:
        from hermes.ratings.http import agreement_json

        left_out = dict(rows.left_out)
        click.echo(json.dumps({**agreement_json(report), "rows": counts, "left_out": left_out}))
        return
    if not report.raters:
        click.echo("nothing is rated yet; hermes rate last good, or hermes rate queue")
        return
    click.echo(_raters(report))
    click.echo(_agreement(report))
    click.echo(_rows(rows, counts))


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
