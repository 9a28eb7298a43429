"""The parent of a run: dispatches unfinished samples to workers, replaces dead workers, shuts down in order.

Promises: every sample ends finished, or failed with a cause; finished is what the journal has when the
workers are gone, so a sample whose entry disappeared (a file was truncated) runs again; a sample in flight in
a worker that died is queued again; a sample that repeatedly kills its worker is run alone before it fails, so
that no other sample fails with it; stopping, at any moment and in any way, leaves a run that the same command
continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

from hermes.batch.attempt import interrupted_cost_usd
from hermes.batch.journal import JournalSegment, SampleEntry, SampleState, cut_torn_tails, read_states
from hermes.batch.overview import recorded_cost_usd, write_start
from hermes.batch.plan import SampleKey, planned_samples, read_progress, unfinished_samples
from hermes.batch.progress import BatchProgress, cause_of
from hermes.batch.spec import RunSpec
from hermes.batch.tasks import Dataset
from hermes.batch.workers.base import WorkerHandle, WorkerJob, WorkerSource
from hermes.batch.workers.process import ProcessWorkers
from hermes.batch.workers.run_budget import CallName, CostLedger
from hermes.config.load import load
from hermes.config.paths import db_path
from hermes.core import JSONObject, new_id
from hermes.errors import HermesError
from hermes.store import Reader

_CRASHES_BEFORE_ALONE = 1
_ROUNDS = 3
"""How often samples whose entries disappear from the journal are run before they fail."""
_UNRECORDED = "JournalDamaged: its entry disappeared from the journal"


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is executed; nothing here changes its data."""

    num_workers: int = 4
    concurrency: int = 256
    """Samples in flight, over all workers."""
    max_tries: int = 3
    """Attempts at one sample after infrastructure failures or dead workers."""
    max_cost_usd: float | None = None
    """The most that the run may cost, earlier starts included."""
    policy_url: str | None = None
    """See `WorkerJob`."""


@dataclass(slots=True)
class RunResult:
    total: int
    finished: int = 0
    """Done or filtered, earlier starts included."""
    failed: Counter[str] = field(default_factory=Counter)
    """Samples that failed in this start, by cause; they run again on the next."""
    stopped: bool = False
    """A drain or stop was requested before every sample was finished."""
    worker_deaths: int = 0

    @property
    def complete(self) -> bool:
        return self.finished == self.total


@dataclass(slots=True)
class _Worker:
    name: str
    handle: WorkerHandle
    outstanding: dict[SampleKey, None] = field(default_factory=dict)
    alone: bool = False
    """Runs one suspect sample at a time and nothing else."""
    listener: asyncio.Task[None] | None = None


class Pool:
    """One start of a run. `drain` and `stop` may be called at any time, from the same event loop."""

    def __init__(
        self,
        folder: Path,
        spec: RunSpec,
        dataset: Dataset,
        options: RunOptions,
        watcher: BatchProgress,
        workers: WorkerSource | None = None,
    ) -> None:
        """Without `workers`, processes on this machine."""
        self._folder = folder
        self._spec = spec
        self._worker_source = workers or ProcessWorkers(folder)
        self._options = options
        self._watcher = watcher
        self._rows = {row.key: row for row in dataset.rows}
        self._rewards = tuple(sorted({row.reward for row in dataset.rows if row.reward}))
        cut_torn_tails(folder / "journal")
        progress = read_progress(read_states(folder / "journal"))
        planned = unfinished_samples(dataset.rows, spec.samples_per_prompt, progress)
        total = len(dataset.rows) * spec.samples_per_prompt
        self.result = RunResult(total, total - len(planned))
        self._finished: dict[SampleKey, SampleState | None] = dict.fromkeys(
            key for key in planned_samples(dataset.rows, spec.samples_per_prompt) if key in progress.finished
        )
        """Finished samples of the plan → their state; None: finished in an earlier start."""
        self._queue: deque[SampleKey] = deque(planned)
        self._suspects: deque[SampleKey] = deque()
        self._tries: Counter[SampleKey] = Counter()
        self._crashes: Counter[SampleKey] = Counter()
        self._workers: dict[str, _Worker] = {}
        self._segment: JournalSegment | None = None
        self._changed = asyncio.Event()
        self._fatal: HermesError | None = None
        self._draining = False
        self._stopping = False
        self._started_workers = 0
        self._ledger: CostLedger | None = None
        if options.max_cost_usd is not None:
            spent_usd = recorded_cost_usd(folder / "journal")
            with Reader(db_path(load(spec.settings).home)) as reader:
                spent_usd += interrupted_cost_usd(reader, spec, planned)
            self._ledger = CostLedger(options.max_cost_usd, spent_usd)

    async def run(self) -> RunResult:
        write_start(self._folder, self.result.total, self.result.finished)
        self._watcher.started(self.result.total, self.result.finished)
        for round_number in range(1, _ROUNDS + 1):
            await self._run_queue()
            if self._fatal is not None:
                raise self._fatal
            lost = self._lost_entries()
            if not lost or self.result.stopped:
                break
            _logger.warning("%d finished samples have no entry in the journal any more", len(lost))
            if round_number < _ROUNDS:
                self._queue.extend(lost)
            else:
                self.result.failed[cause_of(_UNRECORDED)] += len(lost)
        return self.result

    async def _run_queue(self) -> None:
        try:
            while self._work_left() or self._in_flight():
                if self._stopping or (self._fatal is not None and not self._draining):
                    break
                if self._draining and not self._in_flight():
                    break
                await self._start_workers()
                self._dispatch_samples()
                self._changed.clear()
                if self._in_flight() or not self._work_left():
                    await self._changed.wait()
        finally:
            await self._close()

    def _lost_entries(self) -> list[SampleKey]:
        """The samples that were reported as finished and are not in the journal; they no longer count."""
        recorded = read_progress(read_states(self._folder / "journal")).finished
        lost = [key for key in self._finished if key not in recorded]
        for key in lost:
            self._watcher.entry_lost(self._finished.pop(key))
        self.result.finished -= len(lost)
        return lost

    def drain(self) -> None:
        """Dispatches nothing new and waits for the samples in flight."""
        self._draining = self.result.stopped = True
        self._changed.set()

    def stop(self) -> None:
        """Kills the workers; the samples in flight stay unfinished."""
        self._stopping = self.result.stopped = True
        self._changed.set()

    def _work_left(self) -> bool:
        return not self._draining and bool(self._queue or self._suspects)

    def _in_flight(self) -> int:
        return sum(len(worker.outstanding) for worker in self._workers.values())

    async def _start_workers(self) -> None:
        """Starts as many workers as there is work for; suspects get a worker of their own."""
        if not self._work_left():
            return
        regular = [worker for worker in self._workers.values() if not worker.alone]
        needed = min(self._options.num_workers, len(self._queue) + sum(len(w.outstanding) for w in regular))
        for _ in range(needed - len(regular)):
            await self._start_worker(alone=False)
        if self._suspects and not any(worker.alone for worker in self._workers.values()):
            await self._start_worker(alone=True)

    async def _start_worker(self, *, alone: bool) -> None:
        self._started_workers += 1
        name = f"{new_id()}-{self._started_workers}"
        budgeted = self._ledger is not None
        job = WorkerJob(name, self._spec, self._share(), budgeted, self._rewards, self._options.policy_url)
        worker = _Worker(name, await self._worker_source.start(job), alone=alone)
        worker.listener = asyncio.create_task(self._listen(worker))
        self._workers[name] = worker

    def _dispatch_samples(self) -> None:
        for worker in self._workers.values():
            if worker.alone:
                if self._suspects and not worker.outstanding and not self._draining:
                    self._dispatch(worker, self._suspects.popleft())
                continue
            while self._queue and len(worker.outstanding) < self._share() and not self._draining:
                self._dispatch(worker, self._queue.popleft())

    def _share(self) -> int:
        """Samples in flight in one worker."""
        return max(1, self._options.concurrency // self._options.num_workers)

    def _dispatch(self, worker: _Worker, key: SampleKey) -> None:
        order = {"do": "run", "row": self._rows[key.key].to_json(), "sample": key.sample}
        worker.outstanding[key] = None
        worker.handle.send(order)
        self._watcher.dispatched()

    async def _listen(self, worker: _Worker) -> None:
        async for report in worker.handle.reports():
            self._handle_report(worker, report)
        self._on_worker_end(worker)

    def _handle_report(self, worker: _Worker, report: JSONObject) -> None:
        match report["say"]:
            case "finished":
                self._finish(worker, report)
            case "gauges":
                self._watcher.gauges(worker.name, report["in_flight"], report["limit"], report["waiting"])
            case "fatal":
                self._fatal = self._fatal or HermesError(report["message"], report["hint"])
                self._draining = False
            case "unpaid":
                worker.outstanding.pop(SampleKey(report["key"], report["sample"]), None)
                self._draining = self._draining or self._fatal is None
                self._fatal = self._fatal or HermesError(report["message"], report["hint"])
            case "reserve" if self._ledger is not None:
                self._ledger.reserve(CallName(worker.name, report["call"]), report["usd"])
            case "spent" if self._ledger is not None:
                self._ledger.settle(CallName(worker.name, report["call"]), report["usd"])
        self._decide_calls()
        self._changed.set()

    def _decide_calls(self) -> None:
        """Tells the workers which of their model calls may start, and which the budget refuses."""
        for call, refusal in self._ledger.decide() if self._ledger else ():
            order = {"do": "decide", "call": call.number, "refusal": refusal}
            self._workers[call.worker].handle.send(order)

    def _finish(self, worker: _Worker, report: JSONObject) -> None:
        key = SampleKey(report["key"], report["sample"])
        worker.outstanding.pop(key, None)
        state = SampleState(report["state"])
        if state is SampleState.FAILED:
            self._tries[key] += 1
            if self._tries[key] < self._options.max_tries:
                self._queue.append(key)
                self._watcher.retried(report["reason"])
                return
            self.result.failed[cause_of(report["reason"])] += 1
        else:
            self.result.finished += 1
            self._finished[key] = state
        tokens = sum((report["usage"] or {}).values())
        self._watcher.finished(state, report["reason"], tokens, report["cost_usd"])

    def _on_worker_end(self, worker: _Worker) -> None:
        """Requeues the samples of an ended worker; one that keeps killing workers runs alone, then fails."""
        self._workers.pop(worker.name, None)
        if self._ledger is not None:
            self._ledger.end_worker(worker.name)
            self._decide_calls()
        if worker.outstanding and not self._stopping and self._fatal is None:
            self.result.worker_deaths += 1
            self._watcher.worker_died(worker.name, len(worker.outstanding))
            for key in worker.outstanding:
                self._crashes[key] += 1
                if worker.alone and self._crashes[key] >= self._options.max_tries:
                    self._fail_crashing(key, worker.handle.ending)
                elif self._crashes[key] > _CRASHES_BEFORE_ALONE:
                    self._suspects.append(key)
                else:
                    self._queue.appendleft(key)
        self._changed.set()

    def _fail_crashing(self, key: SampleKey, ending: str) -> None:
        reason = f"WorkerDied: {self._crashes[key]} times while running it ({ending})"
        if self._segment is None:
            # It contains only keys and causes written here: nothing to redact.
            self._segment = JournalSegment(self._folder / "journal" / f"{new_id()}-parent.jsonl", str)
        self._segment.append(SampleEntry(key.key, key.sample, SampleState.FAILED, {}, reason)).result()
        self.result.failed[cause_of(reason)] += 1
        self._watcher.finished(SampleState.FAILED, reason, 0, None)

    async def _close(self) -> None:
        """Drains idle workers; kills busy ones, which remain after a stop or a fatal error."""
        for worker in list(self._workers.values()):
            if worker.outstanding:
                worker.handle.kill()
            else:
                worker.handle.send({"do": "drain"})
        listeners = [worker.listener for worker in self._workers.values() if worker.listener]
        await asyncio.gather(*listeners)
        if self._segment is not None:
            self._segment.close()
            self._segment = None


async def run_batch(
    folder: Path,
    spec: RunSpec,
    dataset: Dataset,
    options: RunOptions,
    watcher: BatchProgress,
    workers: WorkerSource | None = None,
) -> RunResult:
    """Runs every sample that the journal does not list as finished."""
    return await Pool(folder, spec, dataset, options, watcher, workers).run()
