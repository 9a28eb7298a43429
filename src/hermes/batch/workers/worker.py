"""A worker process: one event loop, many samples in flight. Run as `python -m hermes.batch.workers.worker`.

Orders are JSON lines on standard input, the job first; reports are JSON lines on standard output. A sample is
reported finished only after its entry is in this worker's journal segment. On `drain` the worker finishes the
samples in flight and exits; when standard input ends, because the parent died, it stops at once.

    in:  {"do": "start", "folder", "name", "concurrency", "budgeted", "rewards",
         "policy_url"} · {"do": "drain"}
         {"do": "run", "row": {…}, "sample": 0} · {"do": "decide", "call": 0, "refusal"}
    out: {"say": "ready"} · {"say": "finished", "key", "sample", "state", "reason", …}
         {"say": "gauges", "in_flight", "limit", "waiting"} · {"say": "fatal", "message", "hint"}
         {"say": "unpaid", "key", "sample", "message", "hint"}
         {"say": "reserve", "call", "usd"} · {"say": "spent", "call", "usd"}
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from hermes.agent.build import open_writer
from hermes.batch.journal import JournalSegment, SampleEntry, SampleState
from hermes.batch.reward import RewardFunction, load_reward
from hermes.batch.rollout import WorkerContext, run_sample
from hermes.batch.spec import RunSpec, load_spec
from hermes.batch.tasks import TaskRow
from hermes.batch.trial import open_trials
from hermes.batch.workers.base import WorkerJob
from hermes.batch.workers.run_budget import BudgetedModel
from hermes.config.environment import export_stored
from hermes.config.load import Config, load
from hermes.config.paths import db_path
from hermes.config.providers import resolve_model
from hermes.core import JSONObject, StopReason
from hermes.errors import AuthError, HermesError, HostError
from hermes.models.budget import Budget
from hermes.models.open import open_model
from hermes.models.usage import price_of_model
from hermes.safety.redact import Redactor
from hermes.store import Reader

_GAUGE_INTERVAL_S = 1.0
_LINE_BYTES = 1 << 28


class SampleJournal(Protocol):
    """Where finished samples are written; see batch.journal.JournalSegment."""

    def append(self, entry: SampleEntry) -> Future[None]: ...
    def close(self) -> None: ...


SendReport = Callable[[JSONObject], None]
OpenJournal = Callable[[Callable[[str], str]], SampleJournal]
"""Its argument redacts an entry's JSON text before it leaves the worker."""


class Worker:
    def __init__(self, context: WorkerContext, journal: SampleJournal, send_report: SendReport) -> None:
        self._context = context
        self._journal = journal
        self._send_report = send_report
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self, orders: AsyncIterator[JSONObject]) -> None:
        """Runs orders until a drain has finished, or until the orders end because the parent died."""
        gauges = asyncio.create_task(self._report_gauges())
        try:
            async for order in orders:
                if order["do"] == "drain":
                    await asyncio.gather(*self._running)
                    return
                if order["do"] == "decide":
                    assert isinstance(self._context.model, BudgetedModel)
                    self._context.model.decide(order["call"], order["refusal"])
                    continue
                task = asyncio.create_task(self._run(TaskRow.from_json(order["row"]), order["sample"]))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        finally:
            for task in (gauges, *self._running):
                task.cancel()
            await asyncio.gather(gauges, *self._running, return_exceptions=True)

    async def _run(self, row: TaskRow, sample: int) -> None:
        try:
            entry = await run_sample(self._context, row, sample)
        except HostError as error:
            self._send_report({"say": "fatal", "message": error.message, "hint": error.hint})
            return
        except Exception as error:  # noqa: BLE001  a bug, or no sandbox: this sample's failure, with its trace
            detail = error.message if isinstance(error, HermesError) else traceback.format_exc()
            reason = f"{type(error).__name__}: {error}"
            entry = SampleEntry(row.key, sample, SampleState.FAILED, {"error": detail}, reason)
        if report := self._fatal_report(entry):
            self._send_report(report)
            return
        try:
            await asyncio.wrap_future(self._journal.append(entry))
        except HermesError as error:
            self._send_report({"say": "fatal", "message": error.message, "hint": error.hint})
            return
        self._send_report(_finished_report(entry))

    def _fatal_report(self, entry: SampleEntry) -> JSONObject | None:
        """A rejected key or a spent budget is not a sample's failure: no entry is written, the run stops.

        With a spent budget the other samples in flight end by themselves, at their next call.
        """
        outcome = entry.row.get("outcome") or {}
        if outcome.get("error_type") == AuthError.__name__:
            return {
                "say": "fatal",
                "message": outcome["detail"],
                "hint": "set a valid key, then run the same command",
            }
        if outcome.get("stop_reason") == StopReason.MAX_COST and not self._reached_own_limit(entry):
            return {
                "say": "unpaid",
                "key": entry.key,
                "sample": entry.sample,
                "message": f"the run's budget is spent: {outcome['detail']}",
                "hint": "run the same command with a higher --max-cost to continue",
            }
        return None

    def _reached_own_limit(self, entry: SampleEntry) -> bool:
        """Whether the limit of a single trajectory ended it, not the run's."""
        limit_usd = self._context.config.settings.limits.max_cost_usd
        return limit_usd is not None and (entry.row["cost_usd"] is None or entry.row["cost_usd"] >= limit_usd)

    async def _report_gauges(self) -> None:
        while True:
            await asyncio.sleep(_GAUGE_INTERVAL_S)
            throttle = getattr(self._context.model, "throttle", None)
            if throttle is not None:
                self._send_report(
                    {
                        "say": "gauges",
                        "in_flight": throttle.in_flight,
                        "limit": throttle.limit,
                        "waiting": throttle.waiting,
                    }
                )


def _finished_report(entry: SampleEntry) -> JSONObject:
    return {
        "say": "finished",
        "key": entry.key,
        "sample": entry.sample,
        "state": entry.state.value,
        "reason": entry.reason,
        "usage": entry.row.get("usage"),
        "cost_usd": entry.paid_usd,
    }


def _load_rewards(spec: RunSpec, extra: tuple[str, ...]) -> dict[str, RewardFunction]:
    return {reference: load_reward(reference) for reference in {spec.reward, *extra} if reference}


async def work(
    job: WorkerJob, open_journal: OpenJournal, send_report: SendReport, orders: AsyncIterator[JSONObject]
) -> None:
    """Runs a worker until it is drained or its orders end."""
    config = _config(job)
    budget = Budget()
    label = job.spec.model if job.policy_url else None
    model = open_model(config, *job.target, budget, label=label)
    if job.budgeted:
        model = BudgetedModel(model, budget, price_of_model(config.settings, model), send_report)
    journal = open_journal(Redactor(config.secrets).text)
    try:
        with open_writer(config) as writer, Reader(db_path(config.home)) as reader:
            rewards = _load_rewards(job.spec, job.rewards)
            trials = open_trials(job.spec.trials, config)
            context = WorkerContext(job.spec, config, model, writer, reader, rewards, trials)
            send_report({"say": "ready"})
            await Worker(context, journal, send_report).serve(orders)
    finally:
        journal.close()
        await model.close()


def _config(job: WorkerJob) -> Config:
    """The run's settings; as many concurrent model calls as samples, whatever the provider's default is."""
    settings = job.spec.settings
    config = load(settings)
    target = resolve_model(config.settings, config.environ, *job.target)
    provider = {"base_url": target.base_url, "max_concurrency": max(job.concurrency, 1)}
    merged = {f"providers.{target.provider}.{key}": value for key, value in provider.items()}
    return replace(load({**settings, **merged}), texts=job.spec.texts)


def _stdout_sender() -> SendReport:
    """Sends reports to standard output; all other output is redirected to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr

    def send_report(report: JSONObject) -> None:
        out.write(json.dumps(report) + "\n")
        out.flush()

    return send_report


async def _standard_input() -> AsyncIterator[JSONObject]:
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def _serve_stdin(send_report: SendReport) -> None:
    """Runs the job that arrives on standard input; returns if the input ends before one arrives."""
    orders = _standard_input()
    async for start in orders:
        folder = Path(start["folder"])
        job = WorkerJob(
            name=start["name"],
            spec=load_spec(folder),
            concurrency=start["concurrency"],
            budgeted=start["budgeted"],
            rewards=tuple(start["rewards"]),
            policy_url=start["policy_url"],
        )
        await work(
            job, partial(JournalSegment, folder / "journal" / f"{job.name}.jsonl"), send_report, orders
        )
        return


def main() -> None:
    send_report = _stdout_sender()
    try:
        export_stored()
        asyncio.run(_serve_stdin(send_report))
    except HermesError as error:
        send_report({"say": "fatal", "message": error.message, "hint": error.hint})
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
