"""A summary of a run, read from its folder alone."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hermes.batch.journal import SampleEntry, SampleState, read_journal
from hermes.batch.plan import SampleKey
from hermes.batch.progress import cause_of
from hermes.batch.spec import load_spec
from hermes.core import JSONObject, parse_object
from hermes.core.clock import now_ms
from hermes.disk.files import atomic_write, ensure_dir, read_text
from hermes.store import owner

_FOLDER, _NAME = "journal", "start.json"


@dataclass
class _Tally:
    """The sums of one pass over the journal; each sample counts once."""

    states: dict[SampleKey, SampleState] = field(default_factory=dict)
    failures: dict[SampleKey, str] = field(default_factory=dict)
    """The reason of the last failed try."""
    rewards: list[float] = field(default_factory=list)
    grader_errors: list[str] = field(default_factory=list)
    cost_usd: float = 0.0
    unpriced: int = 0
    continued: int = 0
    replayed_calls: int = 0
    repeated_calls: int = 0

    def add(self, entry: SampleEntry) -> None:
        key = SampleKey(entry.key, entry.sample)
        if entry.state is SampleState.FAILED:
            self.failures[key] = entry.reason or "unknown"
            self._add_effort(entry)
            return
        if key in self.states:
            return
        self.states[key] = entry.state
        self._add_effort(entry)
        self.unpriced += entry.paid_usd is None
        if (reward := entry.row.get("reward")) is not None:
            self.rewards.append(reward)
        if error := entry.row.get("reward_error"):
            self.grader_errors.append(error)

    def _add_effort(self, entry: SampleEntry) -> None:
        self.cost_usd += entry.paid_usd or 0.0
        self.continued += bool(entry.effort)
        self.replayed_calls += entry.effort.get("replayed_calls", 0)
        self.repeated_calls += entry.effort.get("repeated_calls", 0)


def recorded_cost_usd(journal: Path) -> float:
    """The known cost of all samples and failed tries of a run so far."""
    return _tally(journal).cost_usd


def _tally(journal: Path) -> _Tally:
    tally = _Tally()
    for entry in read_journal(journal):
        tally.add(entry)
    return tally


def overview(folder: Path) -> JSONObject:
    """State, progress, cost, rewards and failures of the run in `folder`.

    The total, the rate and the state come from the newest start; they are None for a run that was made
    before starts were recorded.
    """
    spec = load_spec(folder)
    tally = _tally(folder / "journal")
    start = read_start(folder)
    finished = len(tally.states)
    failed = {key: reason for key, reason in tally.failures.items() if key not in tally.states}
    counts = Counter(tally.states.values())
    return {
        "run": spec.name,
        "state": _state(start, finished),
        "model": spec.model,
        "dataset": spec.dataset,
        "total": start.total if start else None,
        "finished": finished,
        "percent": round(100 * finished / start.total, 1) if start and start.total else None,
        "done": counts[SampleState.DONE],
        "filtered": counts[SampleState.FILTERED],
        "failed": len(failed),
        "failures": by_message(list(failed.values())),
        "grader_failures": by_message(tally.grader_errors),
        **_pace(start, finished),
        "cost_usd": round(tally.cost_usd, 6) if finished > tally.unpriced or tally.cost_usd else None,
        "unpriced": tally.unpriced,
        "continued": tally.continued,
        "replayed_calls": tally.replayed_calls,
        "repeated_calls": tally.repeated_calls,
        "scored": len(tally.rewards),
        "mean_reward": math.fsum(tally.rewards) / len(tally.rewards) if tally.rewards else None,
        "finalised": (folder / "statistics.json").exists(),
    }


def by_message(reasons: list[str]) -> list[JSONObject]:
    """The causes of failures, most frequent first, each with one message as it came."""
    counts = Counter(cause_of(reason) for reason in reasons)
    examples = {cause_of(reason): reason for reason in reversed(reasons)}
    return [
        {"cause": cause, "count": count, "message": examples[cause]} for cause, count in counts.most_common()
    ]


def _state(start: StartRecord | None, finished: int) -> str | None:
    if start is None:
        return None
    if finished >= start.total:
        return "complete"
    return "running" if start.running else "stopped"


def _pace(start: StartRecord | None, finished: int) -> JSONObject:
    """Rate and time left of a run that is going on; None otherwise."""
    if start is None or not start.running or finished <= start.finished_before or finished >= start.total:
        return {"rate_per_s": None, "eta_s": None}
    elapsed_s = max(0.001, time.time() - start.started_at_ms / 1000)
    rate = (finished - start.finished_before) / elapsed_s
    return {"rate_per_s": round(rate, 4), "eta_s": round((start.total - finished) / rate)}


@dataclass(frozen=True, slots=True)
class StartRecord:
    total: int
    """Samples of the whole plan."""
    finished_before: int
    """Samples that earlier starts had finished."""
    started_at_ms: int
    process: str
    """As `store.owner` writes it."""

    @property
    def running(self) -> bool:
        return owner.is_alive(self.process)


def write_start(folder: Path, total: int, finished_before: int) -> None:
    """Notes that this process runs the samples now."""
    record = StartRecord(total, finished_before, now_ms(), owner.this_process())
    ensure_dir(folder / _FOLDER)
    atomic_write(folder / _FOLDER / _NAME, json.dumps(asdict(record)) + "\n")


def read_start(folder: Path) -> StartRecord | None:
    """The newest start; None for a run that has none, or one that cannot be read."""
    text = read_text(folder / _FOLDER / _NAME)
    try:
        return None if text is None else StartRecord(**parse_object(text))
    except (ValueError, TypeError):
        return None
