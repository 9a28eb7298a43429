"""The report of a quickstart: tables for the terminal, a page, the reward curve, and commands to try next."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path

from hermes.core.durations import duration
from hermes.core.stats import Interval
from hermes.disk.files import atomic_write
from hermes.quickstart import chart
from hermes.quickstart.act import command_list, text_table
from hermes.quickstart.outcome import QuickstartOutcome

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
body {{ max-width: 50rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ padding: .25rem 1rem .25rem 0; text-align: right; font-variant-numeric: tabular-nums }}
th:first-child, td:first-child {{ text-align: left }}
tr {{ border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent) }}
svg {{ width: 100%; height: auto }}
pre {{ overflow-x: auto }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
{tables}
{curve}
<h2>Next</h2>
<pre>{following}</pre>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """The files of a report."""

    page: Path
    curve: Path
    data: Path


def write(outcome: QuickstartOutcome) -> ReportFiles:
    """report.html, reward.svg and report.json in the quickstart's folder."""
    folder = outcome.folder
    files = ReportFiles(folder / "report.html", folder / "reward.svg", folder / "report.json")
    atomic_write(files.page, html(outcome))
    atomic_write(files.curve, chart.svg(_curve(outcome)))
    atomic_write(files.data, json.dumps(outcome.to_json(), indent=1) + "\n")
    return files


def text(outcome: QuickstartOutcome, files: ReportFiles) -> str:
    """The report for the terminal."""
    tables = (text_table(table) for table in _tables(outcome))
    return "\n\n".join((*tables, _file_list(files), f"Next:\n{next_commands(outcome)}"))


def html(outcome: QuickstartOutcome) -> str:
    return _PAGE.format(
        title=escape(outcome.run_name),
        summary=escape(_summary(outcome)),
        tables="\n".join(_html_table(table) for table in _tables(outcome)),
        curve=chart.svg(_curve(outcome)),
        following=escape(next_commands(outcome)),
    )


def next_commands(outcome: QuickstartOutcome) -> str:
    """Commands that work unchanged after this quickstart."""
    engine = "http://127.0.0.1:8001/v1"
    commands = (
        (f"hermes trajectories list --run {outcome.run_name}", "what was generated"),
        (f"hermes engine serve --state-dir {outcome.folder / 'engine'}", "serves what was learned; then:"),
        (f'hermes -q "What is 384 * 29?" --base-url {engine} --model policy --toolsets math', "asks it"),
        ("hermes env list", "what else there is to learn"),
        ("hermes rl --help", "runs in the background"),
    )
    return command_list(commands)


def _summary(outcome: QuickstartOutcome) -> str:
    return (
        f"{outcome.right} of {outcome.generated} generated trajectories were right: the warm start's data. "
        f"Trained on {outcome.device} in {duration(outcome.seconds)}. Intervals are of 95 % (Wilson)."
    )


def _tables(outcome: QuickstartOutcome) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    success: list[tuple[str, ...]] = [("held-out success", "greedy", "", "sampled", "")]
    for name, evaluation in outcome.policies:
        success.append((name, *_rate(evaluation.greedy), *_rate(evaluation.sampled)))
    spent: list[tuple[str, ...]] = [("stage", "time", "tokens sampled", "trained")]
    for stage in outcome.stages:
        counts = _counts(stage.tokens.sampled, stage.tokens.trained)
        spent.append((stage.name, duration(stage.seconds), *counts))
    sampled = sum(stage.tokens.sampled for stage in outcome.stages)
    trained = sum(stage.tokens.trained for stage in outcome.stages)
    spent.append(("together", duration(outcome.seconds), *_counts(sampled, trained)))
    return success, spent


def _rate(rate: Interval) -> tuple[str, str]:
    return f"{rate.mean:.1%}", f"({rate.low:.1%} to {rate.high:.1%})"


def _counts(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{number:,}" if number else "" for number in numbers)


def _curve(outcome: QuickstartOutcome) -> list[tuple[int, float]]:
    return [(point.step, point.reward) for point in outcome.curve]


def _file_list(files: ReportFiles) -> str:
    return f"report  {files.page}\ncurve   {files.curve}"


def _html_table(rows: list[tuple[str, ...]]) -> str:
    def line(row: tuple[str, ...], cell: str) -> str:
        return "<tr>" + "".join(f"<{cell}>{escape(value)}</{cell}>" for value in row) + "</tr>"

    return "<table>" + line(rows[0], "th") + "".join(line(row, "td") for row in rows[1:]) + "</table>"
