"""A whole run: rows in, in their order; compressed rows, rows kept aside and bad lines out.

    <output>                    the rows that fit          <output stem>_metrics.json     figures
    <output stem>_kept_aside    those that do not, with the reason
    <output stem>_bad_rows      lines that are no rows, with file, line and reason

A bounded window of rows is in memory, whatever the input's size. Each finished row is in the journal before
the next is waited for; the files above are written whole at the end, out of the journal, and replace what
was there.

A compressed trajectory is a record of its own in the store, beside its parent. It has the parent's steps with
their messages as they are now, what was left out missing, and the map of folds in its metadata. What the
calls cost, and their exact tokens, stay with the parent: nothing was sampled here, and no figure may count
twice.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TextIO

from hermes.core import Header, JSONObject, Message, Relation, Step, Usage
from hermes.core.message import hide_thinking
from hermes.core.outcome import COMPLETED
from hermes.data.compress.folding.plan import FoldSettings, Strategy
from hermes.data.compress.run.job import CompressItem, CompressResult, InputKind
from hermes.data.compress.run.journal import CompressJournal
from hermes.data.compress.run.metrics import SummaryCost, Totals
from hermes.data.compress.run.summarise import Summariser, SummaryFailedError
from hermes.data.compress.run.workers import CompressWorkers
from hermes.data.example import load
from hermes.data.lines import encode_row
from hermes.disk.files import replacing
from hermes.store import Filter, Reader, Writer

_ROUNDS = 3
"""Passes over one row in which a model may write states."""
_AHEAD = 4
"""Rows under way for each worker."""

Watch = Callable[[CompressResult, float], None]
"""Told of each finished row, and how far through the input it was."""


@dataclass(frozen=True, slots=True)
class Outputs:
    rows: Path

    @property
    def kept_aside(self) -> Path:
        return self._beside("_kept_aside.jsonl")

    @property
    def bad_rows(self) -> Path:
        return self._beside("_bad_rows.jsonl")

    @property
    def metrics(self) -> Path:
        return self._beside("_metrics.json")

    def _beside(self, ending: str) -> Path:
        return self.rows.with_name(self.rows.stem + ending)


@dataclass(frozen=True, slots=True)
class CompressorParts:
    """The parts that rows go through."""

    settings: FoldSettings
    workers: CompressWorkers
    summariser: Summariser | None = None
    """None: no model is called, whatever the strategy."""
    concurrency: int = 1
    """Rows under way beyond those being computed, waiting for a model."""

    async def compress(self, item: CompressItem) -> CompressResult:
        """One row to its end."""
        settings = self.settings
        texts: dict[str, str] = {}
        cost = SummaryCost()
        for _ in range(_ROUNDS):
            done = await self.workers.compress(item, settings, texts, cost)
            if done.kind is not InputKind.PENDING:
                return done
            if self.summariser is None:
                break
            try:
                written, more = await self.summariser.write(done.pending)
            except SummaryFailedError as failure:
                cost = _sum(cost, failure.cost)
                break
            texts |= written
            cost = _sum(cost, more)
        reason = cost.fallback or "the states that were written left no room"
        by_rules = replace(settings, strategy=Strategy.FOLD)
        return await self.workers.compress(item, by_rules, None, replace(cost, fallback=reason))


def _sum(a: SummaryCost, b: SummaryCost) -> SummaryCost:
    return SummaryCost(a.calls + b.calls, a.errors + b.errors, b.fallback)


async def run(
    engine: CompressorParts,
    items: Iterator[CompressItem],
    journal: CompressJournal,
    watch: Watch,
    keep: Callable[[CompressResult], None],
) -> None:
    """Compresses what the journal does not have yet; `keep` records a finished row elsewhere first."""
    async for item, done in in_order(engine, islice(items, journal.finished, None)):
        await asyncio.to_thread(keep, done)
        journal.append(done)
        watch(done, item.share)


async def in_order(
    engine: CompressorParts, items: Iterator[CompressItem]
) -> AsyncIterator[tuple[CompressItem, CompressResult]]:
    """Rows as they finish, in the input's order, with a bounded number under way."""
    most = max(_AHEAD * engine.workers.count, engine.concurrency if engine.summariser else 1)
    under_way: deque[tuple[CompressItem, asyncio.Task[CompressResult]]] = deque()
    try:
        while True:
            for item in islice(items, most - len(under_way)):
                under_way.append((item, asyncio.create_task(engine.compress(item))))
            if not under_way:
                return
            item, task = under_way.popleft()
            yield item, await task
    finally:
        for _, task in under_way:
            task.cancel()


def finish(journal: CompressJournal, outputs: Outputs, facts: JSONObject) -> Totals:
    """Writes the files of a run whose journal is complete; `facts` go into the metrics beside its sums."""
    totals = Totals()
    with ExitStack() as stack:
        rows = stack.enter_context(replacing(outputs.rows))
        aside = _Optional(stack, outputs.kept_aside)
        bad = _Optional(stack, outputs.bad_rows)
        for entry in journal.entries():
            if entry.kind is InputKind.BAD:
                totals.bad_rows += 1
                totals.first_bad_row = totals.first_bad_row or entry.reason
                bad.write(encode_row({"reason": entry.reason, "line": entry.line}).line)
                continue
            totals.add(entry.metrics)
            if entry.kind is InputKind.ASIDE:
                aside.write(entry.line)
            else:
                rows.write(entry.line + "\n")
    with replacing(outputs.metrics) as file:
        file.write(json.dumps({**totals.to_json(), **facts}, indent=2) + "\n")
    for path, written in ((outputs.kept_aside, aside.used), (outputs.bad_rows, bad.used)):
        if not written:
            path.unlink(missing_ok=True)  # of an earlier run
    return totals


class _Optional:
    """A file that exists only if something is written to it."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self._stack = stack
        self._path = path
        self._file: TextIO | None = None

    @property
    def used(self) -> bool:
        return self._file is not None

    def write(self, line: str) -> None:
        if self._file is None:
            self._file = self._stack.enter_context(replacing(self._path))
        self._file.write(line + "\n")


def record_derived(reader: Reader, writer: Writer, done: CompressResult) -> None:
    """Writes it, unless it is there already; returns once it is on disk."""
    assert done.messages is not None
    if reader.count(Filter(ids=(done.derived_id,))):
        return
    parent = reader.get(done.notes["parent_id"])
    example = load(reader, parent)
    positions = [index for index, message in enumerate(done.messages) if message is not None]
    new_positions = {old: new for new, old in enumerate(positions)}
    unseen = {
        (new_positions[i], new_positions[j])
        for i, j in example.unseen
        if i in new_positions and j in new_positions
    }
    steps = _steps([step for step in parent.steps if not step.ephemeral], done)
    header: Header = replace(
        parent.header,
        id=done.derived_id,
        parent_id=parent.header.id,
        relation=Relation.COMPRESSED,
        metadata={**parent.header.metadata, "compression": done.notes},
    )
    writer.begin(header)
    history: list[Message] = []
    for index, step in enumerate(steps):
        context_messages = hide_thinking(history, {earlier for answer, earlier in unseen if answer == index})
        context = context_messages if step.call else None
        writer.append(header.id, step, context=context, tools=example.tools if step.call else ())
        history.append(step.message)
    writer.finish(header.id, parent.outcome or COMPLETED).result()


def _steps(steps: list[Step], done: CompressResult) -> list[Step]:
    assert done.messages is not None
    remaining: list[Step] = []
    for step, message in zip(steps, done.messages, strict=True):
        if message is None:
            continue
        call = step.call and replace(
            step.call, usage=Usage(), cost_usd=0.0, latency_ms=0.0, first_token_ms=None, raw=None, tokens=None
        )
        remaining.append(replace(step, index=len(remaining), message=Message.from_json(message), call=call))
    return remaining
