"""What `hermes compress` prints: progress while it runs, a report at the end, the analysis of a dry run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.cli.terminal.waiting import can_redraw
from hermes.core import JSONObject
from hermes.core.durations import duration, rate_text
from hermes.safety.text import printable

if TYPE_CHECKING:
    from hermes.data.compress.run.job import CompressResult

_INTERVAL_S = 10.0
_FIRST_LINE_S = 2.0
_LIVE_INTERVAL_S = 0.2
_BAR_CHARS = 40


class CompressProgress:
    """Rows, rate, tokens and the time left: on one line of a terminal, else a line every ten seconds.

    With --json these lines are JSON.
    """

    def __init__(self, before: int, as_json: bool) -> None:
        self._before = before
        self._as_json = as_json
        self._live = can_redraw(sys.stderr) and not as_json
        self._start_s = time.monotonic()
        self._shown_s = self._start_s - _INTERVAL_S + _FIRST_LINE_S
        self._rows = self._tokens = self._problems = 0

    def row(self, result: CompressResult, share: float) -> None:
        self._rows += 1
        self._tokens += result.metrics.get("original_tokens", 0)
        self._problems += bool(result.reason)
        now_s = time.monotonic()
        if now_s - self._shown_s >= (_LIVE_INTERVAL_S if self._live else _INTERVAL_S):
            self._shown_s = now_s
            self._show("progress", share, now_s - self._start_s)

    def end(self) -> None:
        self._show("end", 1.0, time.monotonic() - self._start_s)
        if self._live:
            click.echo(err=True)

    def _show(self, event: str, share: float, elapsed_s: float) -> None:
        rate = self._rows / elapsed_s if elapsed_s else 0.0
        left_s = elapsed_s * (1 - share) / share if share else None
        if not self._as_json:
            left = f", {duration(left_s)} left" if left_s else ""
            trouble = f", {self._problems} with problems" if self._problems else ""
            rows = self._before + self._rows
            line = f"{rows} rows, {rate_text(rate)}, {self._tokens} tokens{trouble}{left}"
            if self._live:
                click.echo(f"\r{line:<78}", nl=False, err=True)
            elif event == "progress":
                click.echo(line, err=True)
            return
        facts = {
            "event": event,
            "rows": self._before + self._rows,
            "problems": self._problems,
            "rows_per_s": round(rate, 2),
            "tokens": self._tokens,
            "tokens_per_s": round(self._tokens / elapsed_s) if elapsed_s else 0,
            "eta_s": None if left_s is None else round(left_s, 1),
        }
        click.echo(json.dumps(facts), err=True)


def report_text(files: Mapping[str, Path], figures: JSONObject, first_bad_row: str | None) -> str:
    summary, tokens, retained = figures["summary"], figures["tokens"], figures["kept"]
    written = summary["trajectories_compressed"] + summary["trajectories_skipped_under_target"]
    lines = [
        f"{written} rows in {files['output']}: {summary['trajectories_compressed']} compressed, "
        f"{summary['trajectories_skipped_under_target']} fitted unchanged",
    ]
    if summary["trajectories_compressed"]:
        lines.append(
            f"  tokens {tokens['total_before']} -> {tokens['total_after']}; of the compressed rows' "
            f"decisions {retained['decisions']:.1%} kept, of the facts used later {retained['facts']:.1%}"
        )
    elif written:
        lines.append(f"  tokens {tokens['total_before']}; nothing had to be removed")
    protected = figures["protected"]
    if protected["rows"]:
        lines.append(
            f"  to fit, {protected['rows']} rows had {protected['outputs_folded']} tool outputs of protected "
            "turns folded (--strict-protect keeps such rows aside)"
        )
    if "kept_aside" in files:
        over = summary["trajectories_still_over_limit"]
        lines.append(f"  over the target, kept aside: {over} ({files['kept_aside']})")
    if "bad_rows" in files:
        lines.append(
            f"  could not be read: {summary['trajectories_failed']} ({files['bad_rows']}); the first: "
            f"{first_bad_row}"
        )
    if figures["summarization"]["rows_folded_instead"]:
        lines.append(
            f"  folded by rules because their summary failed: "
            f"{figures['summarization']['rows_folded_instead']} (see summary_fallback in the rows)"
        )
    return printable("\n".join(lines))


def analysis_text(facts: JSONObject) -> str:
    """A dry run's figures, with a histogram of lengths."""
    lines = [
        f"{facts['rows']} rows, {facts['tokens']} tokens by {facts['tokenizer']}"
        f" (target {facts['target_max_tokens']})",
        f"  mean {facts['mean']:.0f}, median {facts['p50']}, p90 {facts['p90']}, p99 {facts['p99']}, "
        f"max {facts['max']}",
        f"  over the target {facts['over_target']}: {facts['would_fit']} would fit after folding, "
        f"{facts['would_be_kept_aside']} would be kept aside",
        f"  tokens written {facts['tokens_after']}",
    ]
    if facts["would_fold_protected"]:
        lines.append(
            f"  {facts['would_fold_protected']} would fit only with outputs of protected turns folded"
        )
    if facts["bad_rows"]:
        lines.append(f"  {facts['bad_rows']} lines cannot be read as rows")
    most = max((bucket["rows"] for bucket in facts["histogram"]), default=0)
    for bucket in facts["histogram"]:
        bar = "#" * round(_BAR_CHARS * bucket["rows"] / most)
        over = " over" if bucket["from"] >= facts["target_max_tokens"] else ""
        lines.append(f"  {bucket['from']:>8} - {bucket['to']:<8} {bucket['rows']:>6} {bar}{over}".rstrip())
    return printable("\n".join(lines))
