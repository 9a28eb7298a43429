"""Runs `hermes compress`: from options to a run, with its progress, its interruption and its report."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import click

from hermes.cli.compress.options import CompressOptions
from hermes.cli.compress.text import CompressProgress, analysis_text, report_text
from hermes.cli.terminal.progress import ProgressLines
from hermes.cli.terminal.waiting import waiting
from hermes.config.load import Config, load
from hermes.config.paths import db_path
from hermes.core import JSONObject
from hermes.data import where
from hermes.data.compress.counting.tokenizer import find_tokenizer
from hermes.data.compress.counting.tokens import TokenizerSpec
from hermes.data.compress.folding.plan import FoldSettings, Strategy
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
from hermes.models.open import open_model
from hermes.safety.redact import Redactor
from hermes.store import Filter, Reader, Writer

_STORED_ROW_BYTES = 50_000
"""A guess, to decide whether worker processes pay."""


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
        model = open_model(self._config, self._options.model, self._options.base_url, self._budget)
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
        """What a resumed run must have in common with the one that was interrupted."""
        options = self._options
        return {
            "source": options.source,
            "target_max_tokens": options.target_max_tokens,
            "strategy": options.strategy,
            "summary_target_tokens": options.summary_target_tokens,
            "protect_last_turns": options.protect_last_turns,
            "strict_protect": options.strict_protect,
            "sample_percent": options.sample_percent,
            "seed": options.seed,
            "model": options.model,
            "tokenizer": spec.name,
            "input": self._files.digest() if self._files else None,
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
