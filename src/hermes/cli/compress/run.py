"""Runs `hermes compress`: from options to a run, with its progress, its interruption and its report."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import click

from hermes.cli.terminal.progress import ProgressLines
from hermes.cli.terminal.waiting import can_redraw, waiting
from hermes.config.load import Config, load
from hermes.config.paths import db_path
from hermes.core import JSONObject
from hermes.core.clock import duration, rate_text
from hermes.data import where
from hermes.data.compress.counting.tokenizer import find_tokenizer
from hermes.data.compress.counting.tokens import TokenizerSpec
from hermes.data.compress.folding.plan import FoldSettings, Strategy
from hermes.data.compress.options import CompressOptions
from hermes.data.compress.run.analysis import Analysis
from hermes.data.compress.run.inputs import Query, file_items, find_files, store_items
from hermes.data.compress.run.job import CompressItem, CompressResult
from hermes.data.compress.run.journal import CompressJournal
from hermes.data.compress.run.metrics import Totals
from hermes.data.compress.run.pipeline import CompressorParts, Outputs, finish, in_order, record_derived
from hermes.data.compress.run.pipeline import run as run_rows
from hermes.data.compress.run.summarise import Summariser, SummaryCache
from hermes.data.compress.run.workers import CompressWorkers, open_workers, processes_for
from hermes.errors import UsageError
from hermes.models.budget import Budget
from hermes.rl.weights.open import open_named
from hermes.safety.redact import Redactor
from hermes.safety.text import printable
from hermes.store import Filter, Reader, Writer

_STORED_ROW_BYTES = 50_000
"""A guess, to decide whether worker processes pay."""
_INTERVAL_S = 10.0
_FIRST_LINE_S = 2.0
_LIVE_INTERVAL_S = 0.2
_BAR_CHARS = 40


def run(options: CompressOptions, *, as_json: bool) -> int:
    """0 if every row fits and was written as configured, else 1."""
    config = load()
    with ExitStack() as stack:
        return _CompressCommand(options, as_json, config, stack).run()


class _CompressCommand:
    """One call of the command."""

    def __init__(self, options: CompressOptions, as_json: bool, config: Config, stack: ExitStack) -> None:
        self._options = options
        self._as_json = as_json
        self._config = config
        self._stack = stack
        self._reader = stack.enter_context(Reader(db_path(config.home)))
        self._budget = Budget()
        self._files = find_files(options.source)
        self._query = None if self._files else parse_query(options.source, self._reader)
        self._settings = FoldSettings(
            options.target_max_tokens,
            options.protect_last_turns,
            options.summary_target_tokens,
            options.strategy,
            options.strict_protect,
        )

    def run(self) -> int:
        with ProgressLines(to_stderr=True) as progress:
            progress.wait_for(f"opening the tokenizer of {self._options.tokenizer}")
            spec = find_tokenizer(
                self._options.tokenizer,
                self._config.home,
                trust_remote_code=self._options.trust_remote_code,
                progress=progress,
            )
        workers = self._stack.enter_context(open_workers(spec, processes_for(self._size_bytes())))
        if self._options.dry_run:
            return self._analyse(CompressorParts(self._settings, workers))
        outputs = Outputs(self._output())
        started = time.time()
        with CompressJournal(outputs.rows, self._identity(spec), resume=self._options.resume) as journal:
            try:
                asyncio.run(self._compress(workers, spec, journal))
            except KeyboardInterrupt:
                click.echo("interrupted; the same command with --resume carries on", err=True)
                return 130
            totals = finish(journal, outputs, self._facts(started))
            journal.remove()
        self._report(outputs, totals)
        return 1 if totals.bad_rows or totals.over_limit or totals.fallbacks else 0

    async def _compress(
        self, workers: CompressWorkers, spec: TokenizerSpec, journal: CompressJournal
    ) -> None:
        progress = CompressProgress(journal.finished, self._as_json)
        summariser = self._summariser(spec)
        parts = CompressorParts(self._settings, workers, summariser, self._options.concurrency)
        try:
            await run_rows(parts, self._items(), journal, progress.row, self._derived_recorder())
        finally:
            if summariser is not None:
                await summariser.close()
        progress.end()

    def _summariser(self, spec: TokenizerSpec) -> Summariser | None:
        if self._settings.strategy is Strategy.FOLD:
            return None
        model = open_named(self._config, self._options.model, self._options.base_url, self._budget)
        cache = SummaryCache(self._config.home / "cache" / "summaries.jsonl")
        redact = Redactor(self._config.secrets).text
        return Summariser(model, cache, spec, redact, self._options.concurrency)

    def _derived_recorder(self) -> Callable[[CompressResult], None]:
        """A callback that also stores the compressed versions of stored trajectories."""
        if self._files and not self._files.run:
            return lambda result: None
        redact = Redactor(self._config.secrets).text
        writer = self._stack.enter_context(Writer(db_path(self._config.home), redact))

        def record(result: CompressResult) -> None:
            if result.messages is not None:
                record_derived(self._reader, writer, result)

        return record

    def _items(self) -> Iterator[CompressItem]:
        sample = (self._options.sample_percent, self._options.seed)
        if self._files:
            return file_items(self._files, self._reader if self._files.run else None, *sample)
        assert self._query is not None
        return store_items(self._reader, self._query, *sample)

    def _size_bytes(self) -> int:
        if self._files:
            return self._files.size_bytes
        assert self._query is not None
        return self._reader.count(self._query.filters) * _STORED_ROW_BYTES

    def _output(self) -> Path:
        path = self._options.output
        if path is None:
            if self._files is None:
                raise UsageError("--output is missing", "name the file to write, such as compressed.jsonl")
            return self._files.output
        output = path / "trajectories.jsonl" if path.is_dir() or not path.suffix else path
        if self._files and output.resolve() in {source.resolve() for source in self._files.paths}:
            raise UsageError(f"{output} is the input", "originals are never changed: choose another --output")
        return output

    def _analyse(self, parts: CompressorParts) -> int:
        analysis = Analysis(self._settings.target_max_tokens)

        async def analyse() -> None:
            async for _, result in in_order(parts, self._items()):
                analysis.add(result)

        with waiting("counting tokens and trying the folds"):
            asyncio.run(analyse())
        facts = {"tokenizer": self._options.tokenizer, **analysis.to_json()}
        click.echo(json.dumps(facts) if self._as_json else analysis_text(facts))
        return 1 if analysis.bad else 0

    def _identity(self, spec: TokenizerSpec) -> JSONObject:
        """The facts that a resumed run must have in common with the one that was interrupted."""
        names = {
            *("target_max_tokens", "strategy", "summary_target_tokens", "protect_last_turns"),
            *("strict_protect", "sample_percent", "seed", "model"),
        }
        digest = self._files.digest() if self._files else None
        return {
            "source": self._options.source,
            **self._options.model_dump(include=names),
            "tokenizer": spec.name,
            "input": digest,
        }

    def _facts(self, started: float) -> JSONObject:
        ended = time.time()
        return {
            "processing": {
                "start_time": datetime.fromtimestamp(started, UTC).isoformat(),
                "end_time": datetime.fromtimestamp(ended, UTC).isoformat(),
                "duration_seconds": round(ended - started, 3),
                "requests_sent": self._budget.calls,
            },
            "settings": {
                "tokenizer": self._options.tokenizer,
                "target_max_tokens": self._settings.target_max_tokens,
                "strategy": self._settings.strategy.value,
                "protect_last_turns": self._settings.protect_last_turns,
                "strict_protect": self._settings.strict_protect,
            },
        }

    def _report(self, outputs: Outputs, totals: Totals) -> None:
        figures = totals.to_json()
        files = {"output": outputs.rows, "metrics": outputs.metrics}
        files |= {"kept_aside": outputs.kept_aside} if totals.over_limit else {}
        files |= {"bad_rows": outputs.bad_rows} if totals.bad_rows else {}
        if self._as_json:
            click.echo(json.dumps({**{name: str(path) for name, path in files.items()}, **figures}))
        else:
            click.echo(report_text(files, figures, totals.first_bad_row))


def parse_query(text: str, reader: Reader) -> Query:
    """Conditions as for `hermes export --where`, spaces between them; or the name of a run in the store."""
    words = shlex.split(text)
    if not any(mark in text for mark in "=<>~"):
        if reader.count(Filter(run_id=text)):
            return Query(Filter(run_id=text))
        raise UsageError(
            f"'{text}' is no file, no folder, no run under data/ and no run in the store",
            "name one of these, or a query such as 'run=my_run reward>=0.5'",
        )
    run_id = next((word.partition("=")[2] for word in words if word.startswith("run=")), None)
    return Query(Filter(run_id=run_id), tuple(where.parse(word) for word in words))


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
