"""`hermes trajectories`: list, show, search, compare and count what was recorded."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hermes.cli.data.delete import delete
from hermes.cli.filters import FilterOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import CommandGroup, json_option, stored_variables

if TYPE_CHECKING:
    from hermes.data.redaction.redact import RedactionFinding
    from hermes.store import Reader


@contextmanager
def _reader() -> Iterator[Reader]:
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.store import Reader

    with Reader(db_path(load().home)) as reader:
        yield reader


@click.group(cls=CommandGroup)
def trajectories() -> None:
    """List, show, search, compare, score and delete what was recorded.

    A trajectory is named by its id, the beginning or end of it, or 'last'.
    """


@trajectories.command("list")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Most rows to print."
)
@click.option("--before", metavar="ID", help="Continue after this one (the last line of the previous page).")
@model_options(FilterOptions)
@json_option
def list_(filters: FilterOptions, limit: int, before: str | None, as_json: bool) -> None:
    """List trajectories, newest first.

    Without a filter the table leaves rollouts of training out; --source env lists them, --json lists all.
    """
    from hermes.cli.render import summary_table
    from hermes.core import Source
    from hermes.store import Filter

    conditions = filters.build()
    training = Source.ENV.value
    is_default = not (filters.model_fields_set or as_json)
    if is_default:
        conditions = Filter(other_than_source=training)
    with _reader() as reader:
        rows = reader.summaries(conditions, limit=limit, before=reader.resolve(before) if before else None)
        total = reader.count(conditions)
        left_out = reader.count(Filter(source=training)) if is_default else 0
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], ensure_ascii=False))
    elif rows:
        click.echo(summary_table(rows))
        if total > len(rows):
            click.echo(f"{len(rows)} of {total}; more: --limit N or --before {rows[-1].id}")
    elif not left_out:
        click.echo(
            "nothing matches"
            if filters.model_fields_set
            else "nothing recorded yet; try: hermes -q 'What is 17 * 23?'"
        )
    if left_out:
        noun = "rollout" if left_out == 1 else "rollouts"
        click.echo(f"left out: {left_out} {noun} of training; --source env lists them")


@trajectories.command()
@click.argument("trajectory", default="last")
@click.argument("second", metavar="[OTHER]", required=False)
@click.option("--raw", is_flag=True, help="Also the input of each model call: every message and tool schema.")
@click.option(
    "--compressed", is_flag=True, help="Show it beside its compressed version, with the folds marked."
)
@json_option
def show(trajectory: str, second: str | None, raw: bool, compressed: bool, as_json: bool) -> None:
    """Show one trajectory step by step.

    With OTHER it shows where the two first differ, and how.
    """
    if second is not None:
        _print_difference(trajectory, second, as_json)
        return
    if compressed:
        from hermes.cli.data.compressed import show_compressed

        with _reader() as reader:
            show_compressed(reader, reader.resolve(trajectory), as_json=as_json)
        return
    from hermes.cli.render import render_trajectory
    from hermes.cli.terminal.pager import show as page
    from hermes.data.record import to_record

    with _reader() as reader:
        record = reader.get(reader.resolve(trajectory))
        if as_json:
            click.echo(json.dumps(to_record(reader, record, with_inputs=raw), ensure_ascii=False))
            return
        ratings, rewards = reader.ratings(record.header.id), reader.rewards(record.header.id)
        text = render_trajectory(record, ratings, rewards, with_examples=raw)
        if raw:
            inputs = to_record(reader, record, with_inputs=True)["steps"]
            text += "\n" + json.dumps(
                [step for step in inputs if "input" in step], ensure_ascii=False, indent=2
            )
    page(text)


@trajectories.command()
@click.argument("words", nargs=-1, required=True)
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Most rows to print."
)
@json_option
def search(words: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Full-text search over all messages, reasoning, tool calls and results."""
    from hermes.cli.render import hit_lines
    from hermes.cli.terminal.waiting import waiting

    with _reader() as reader, waiting("searching"):
        hits = reader.search(" ".join(words), limit=limit)
    if as_json:
        click.echo(json.dumps([asdict(hit) for hit in hits], ensure_ascii=False))
    else:
        click.echo(hit_lines(hits) or "no match")


@trajectories.command()
@model_options(FilterOptions)
@json_option
def stats(filters: FilterOptions, as_json: bool) -> None:
    """Show statistics of all trajectories, or of those that a filter selects."""
    from hermes.cli.render import stats_text
    from hermes.cli.terminal.waiting import waiting

    conditions = filters.build()
    with _reader() as reader, waiting("counting"):
        figures = reader.stats(conditions)
    click.echo(json.dumps(asdict(figures)) if as_json else stats_text(figures))


trajectories.former_names["diff"] = "show"


def _print_difference(left: str, right: str, as_json: bool) -> None:
    from hermes.cli.render import diff_text
    from hermes.cli.terminal.pager import show as page
    from hermes.data.diff import compare

    with _reader() as reader:
        a, b = reader.get(reader.resolve(left)), reader.get(reader.resolve(right))
    difference = compare(a, b)
    if as_json:
        click.echo(json.dumps(difference.to_json(), ensure_ascii=False))
    else:
        page(diff_text(a, b, difference))


@trajectories.command()
@click.option("--check", is_flag=True, help="Only count, and exit with 1 if anything is found.")
@model_options(FilterOptions)
@json_option
def redact(filters: FilterOptions, check: bool, as_json: bool) -> None:
    """Show what an export would redact.

    It finds known secrets, and values that look like one.

    The record itself is never changed. Findings are shown with their context, not the secret.
    """
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.data.redaction.redact import scan
    from hermes.safety.redact import Redactor

    conditions = filters.build()
    with _reader() as reader, waiting("reading the record"):
        findings = list(scan(reader, conditions, Redactor(load().secrets)))
    _report_findings(findings, check=check, as_json=as_json)


def _report_findings(findings: list[RedactionFinding], *, check: bool, as_json: bool) -> None:
    """Prints the findings; a check with findings exits with 1."""
    from hermes.data.redaction.redact import totals

    counts = totals(findings)
    if as_json:
        details = [] if check else [asdict(finding) for finding in findings]
        click.echo(json.dumps({"steps": len(findings), "hits": counts, "findings": details}))
    else:
        _print_findings(findings, counts, check)
    if check and findings:
        sys.exit(1)


def _print_findings(findings: list[RedactionFinding], counts: dict[str, int], check: bool) -> None:
    from hermes.cli.render import one_line

    if not check:
        for finding in findings:
            click.echo(
                f"{finding.trajectory_id} [{finding.step_index}] {finding.role}: {', '.join(finding.rules)}"
            )
            for excerpt in finding.excerpts:
                click.echo(f"  … {one_line(excerpt, 140)} …")
    trajectory_count = len({finding.trajectory_id for finding in findings})
    click.echo(
        f"{sum(counts.values())} hits in {trajectory_count} trajectories" if findings else "nothing found"
    )
    for rule, count in counts.items():
        click.echo(f"  {rule}: {count}")


trajectories.add_command(delete)


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
    hermes trajectories score --run first --reward my_reward.py:reward
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
    from hermes.safety.author_import import witnessed
    from hermes.store import Reader

    function = load_reward(reward)
    rows = {row.key: row for row in read_dataset(dataset_file).rows} if dataset_file else {}
    config = load()
    conditions = filters.build()
    with (
        Reader(db_path(config.home)) as reader,
        open_writer(config) as writer,
        waiting("scoring"),
        witnessed(f"{reward} scored"),
    ):
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


trajectories.add_command(score)
