"""The progress of a run: a live view on a terminal, otherwise one plain line at intervals; JSON on request.

`BatchProgress` receives the pool's events and computes the figures; its clock is injected. Rate, ETA and
tokens per minute come from a moving window, so that they follow a provider that speeds up or slows down. The
views only read. A view never stops a run: an output error (a closed pipe) is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple, TextIO

from hermes.batch.journal import SampleState
from hermes.core import JSONObject
from hermes.core.clock import duration, rate_text
from hermes.safety.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

WINDOW_S = 60.0
_WINDOW_MIN_EVENTS = 20
"""The newest events are kept at any age, so that a slow run has a rate too."""
_FRAMES_PER_SECOND = 4
INTERVAL_S = 10.0
"""Between two lines."""
_FIRST_LINE_S = 2.0
"""Nothing is silent for longer."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures at one moment. Tokens, costs and failures are those of this start."""

    total: int
    """Samples of the whole plan."""
    finished: int
    """Done or filtered, earlier starts included."""
    done: int
    filtered: int
    failed: int
    """Failed in this start: run again on the next."""
    failed_by_cause: dict[str, int]
    last_failure: str | None
    retried: int
    """Failed tries of samples that were queued again."""
    in_flight: int
    """Samples handed to a worker."""
    calls_in_flight: int
    """Model calls at the endpoint, over all workers."""
    call_limit: int
    """How many the adaptive limit allows at present, over all workers."""
    calls_waiting: int
    """Model calls that wait for the limit."""
    worker_deaths: int
    elapsed_s: float
    rate_per_s: float
    """Samples that finished or failed, over the window."""
    eta_s: float | None
    """None if no sample has finished or failed yet."""
    tokens: int
    tokens_per_minute: float
    """Over the window."""
    known_cost_usd: float
    unpriced: int
    """Finished samples whose price is unknown."""
    projected_cost_usd: float | None
    """The cost of this start, projected to all samples; None: a price is unknown, or none has finished."""

    @property
    def left(self) -> int:
        return self.total - self.finished - self.failed

    def to_json(self) -> JSONObject:
        return {**asdict(self), "left": self.left}


class _SampleEnd(NamedTuple):
    at_s: float
    tokens: int


class BatchProgress:
    """Receives the pool's events. Safe to read from another thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._total = self._before = self._done = self._filtered = 0
        self._in_flight = self._retried = self._deaths = 0
        self._failed: Counter[str] = Counter()
        self._last_failure: str | None = None
        self._gauges: dict[str, tuple[int, int, int]] = {}
        self._tokens = self._unpriced = 0
        self._cost_usd = 0.0
        self._start_s = self._window_start_s = clock()
        self._window: deque[_SampleEnd] = deque()
        self._window_tokens = 0

    def started(self, n_total: int, n_finished_before: int) -> None:
        with self._lock:
            self._total, self._before = n_total, n_finished_before
            self._start_s = self._window_start_s = self._clock()

    def dispatched(self) -> None:
        with self._lock:
            self._in_flight += 1

    def finished(self, state: SampleState, reason: str | None, tokens: int, cost_usd: float | None) -> None:
        """A sample ended for this start: done, filtered, or failed."""
        with self._lock:
            self._in_flight -= 1
            if state is SampleState.FAILED:
                self._failed[cause_of(reason)] += 1
                self._last_failure = reason
            else:
                self._done += state is SampleState.DONE
                self._filtered += state is SampleState.FILTERED
                self._unpriced += cost_usd is None
            self._tokens += tokens
            self._cost_usd += cost_usd or 0.0
            self._window.append(_SampleEnd(self._clock(), tokens))
            self._window_tokens += tokens

    def retried(self, reason: str | None) -> None:
        """A try failed, and the sample is queued again."""
        with self._lock:
            self._in_flight -= 1
            self._retried += 1
            self._last_failure = reason

    def gauges(self, worker: str, in_flight: int, limit: int, waiting: int) -> None:
        with self._lock:
            self._gauges[worker] = (in_flight, limit, waiting)

    def worker_died(self, worker: str | None = None, lost: int = 0) -> None:
        """`lost`: the number of samples that were in flight there and are queued again."""
        with self._lock:
            self._deaths += 1
            self._in_flight -= lost
            self._gauges.pop(worker or "", None)

    def entry_lost(self, state: SampleState | None) -> None:
        """A finished sample has no entry in the journal any more: it runs again, or has failed."""
        with self._lock:
            self._before -= state is None
            self._done -= state is SampleState.DONE
            self._filtered -= state is SampleState.FILTERED

    def snapshot(self) -> Snapshot:
        with self._lock:
            return self._snapshot(self._clock())

    def _snapshot(self, now_s: float) -> Snapshot:
        self._trim_window(now_s)
        failed = self._failed.total()
        settled = self._done + self._filtered + failed
        left = self._total - self._before - settled
        span_s = now_s - self._window_start_s
        rate = len(self._window) / span_s if span_s > 0 else 0.0
        projected = self._cost_usd * (settled + left) / settled if settled and not self._unpriced else None
        gauges = self._gauges.values() if self._in_flight else ()  # they may be a second old
        calls, limit, waiting = (sum(column) for column in zip((0, 0, 0), *gauges, strict=True))
        return Snapshot(
            total=self._total,
            finished=self._before + self._done + self._filtered,
            done=self._done,
            filtered=self._filtered,
            failed=failed,
            failed_by_cause=dict(self._failed.most_common()),
            last_failure=self._last_failure,
            retried=self._retried,
            in_flight=self._in_flight,
            calls_in_flight=calls,
            call_limit=limit,
            calls_waiting=waiting,
            worker_deaths=self._deaths,
            elapsed_s=now_s - self._start_s,
            rate_per_s=rate,
            eta_s=left / rate if rate else None,
            tokens=self._tokens,
            tokens_per_minute=60 * self._window_tokens / span_s if span_s > 0 else 0.0,
            known_cost_usd=self._cost_usd,
            unpriced=self._unpriced,
            projected_cost_usd=projected,
        )

    def _trim_window(self, now_s: float) -> None:
        while len(self._window) > _WINDOW_MIN_EVENTS and self._window[0].at_s < now_s - WINDOW_S:
            oldest = self._window.popleft()
            self._window_start_s = oldest.at_s
            self._window_tokens -= oldest.tokens


def cause_of(reason: str | None) -> str:
    """The kind of failure, without the details of the sample."""
    return (reason or "unknown").partition(":")[0]


@contextmanager
def open_view(
    *, as_json: bool, stream: TextIO | None = None, title: str = "", interval_s: float = INTERVAL_S
) -> Iterator[BatchProgress]:
    """The progress of one start, shown on `stream` (standard error) until the block ends.

    Live if it is a terminal that can be drawn on; otherwise a plain line after two seconds, every
    `interval_s` and at the end. `as_json`: these lines are JSON, on a terminal too.
    """
    out = sys.stderr if stream is None else stream
    progress = BatchProgress()
    if as_json or not out.isatty() or os.environ.get("TERM") == "dumb":
        with _lines_at_intervals(progress, out, _json_line if as_json else plain_line, title, interval_s):
            yield progress
        return
    with live_view(progress, out, title):
        yield progress


@contextmanager
def _lines_at_intervals(
    progress: BatchProgress,
    out: TextIO,
    line_of: Callable[[str, str, Snapshot], str],
    title: str,
    interval_s: float,
) -> Iterator[None]:
    ended = threading.Event()

    def write(event: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader is closed
            out.write(line_of(event, title, progress.snapshot()) + "\n")
            out.flush()

    def tick() -> None:
        pause_s = min(_FIRST_LINE_S, interval_s)
        while not ended.wait(pause_s):
            write("progress")
            pause_s = interval_s

    thread = threading.Thread(target=tick, name="hermes-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        write("end")


def _json_line(event: str, title: str, snapshot: Snapshot) -> str:
    data = {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in snapshot.to_json().items()
    }
    return json.dumps({"event": event, "title": title, **data})


def plain_line(event: str, title: str, snapshot: Snapshot) -> str:
    """`first: 42/300 (14%)  2 failed  3.1/s  83 s left  spent $0.12`."""
    settled = snapshot.finished + snapshot.failed
    share = f" ({settled / snapshot.total:.0%})" if snapshot.total else ""
    parts = [f"{printable(title)}: {settled:,}/{snapshot.total:,}{share}"]
    if snapshot.failed:
        parts.append(f"{snapshot.failed:,} failed")
    if snapshot.rate_per_s:
        parts.append(rate_text(snapshot.rate_per_s))
    if event == "end":
        parts.append(f"in {duration(snapshot.elapsed_s)}")
    elif snapshot.eta_s is not None:
        parts.append(f"{duration(snapshot.eta_s)} left")
    else:
        parts.append(f"{snapshot.in_flight:,} in flight for {duration(snapshot.elapsed_s)}")
    if snapshot.known_cost_usd:
        parts.append(_money(snapshot))
    return "  ".join(parts)


@contextmanager
def live_view(progress: BatchProgress, out: TextIO, title: str) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    with Live(
        console=Console(file=out),
        get_renderable=lambda: render(progress.snapshot(), title),
        refresh_per_second=_FRAMES_PER_SECOND,
    ):
        yield


def render(snapshot: Snapshot, title: str) -> RenderableType:
    """The live view of one snapshot."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid(padding=(0, 2))
    settled = snapshot.finished + snapshot.failed
    share = f"{settled / snapshot.total:.0%}" if snapshot.total else ""
    name = Text(printable(title), style="bold", no_wrap=True, overflow="ellipsis")
    speed = f"{rate_text(snapshot.rate_per_s)}   ETA {_clock(snapshot.eta_s)}"
    bar.add_row(
        name,
        ProgressBar(total=max(snapshot.total, 1), completed=settled, width=24),
        f"{settled:,} / {snapshot.total:,}  {share}",
        speed,
    )
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in _lines(snapshot)]
    return Group(bar, *lines)


def _lines(snapshot: Snapshot) -> Iterator[str]:
    in_flight = [f"in flight {snapshot.in_flight:,}"]
    if snapshot.call_limit:
        in_flight.append(f"model calls {snapshot.calls_in_flight:,} of {snapshot.call_limit:,} allowed")
        in_flight.append(f"{snapshot.calls_waiting:,} waiting")
    if snapshot.worker_deaths:
        in_flight.append(f"workers replaced {snapshot.worker_deaths:,}")
    yield "   ".join(in_flight)
    counts = [f"done {snapshot.done:,}", f"filtered {snapshot.filtered:,}", f"failed {snapshot.failed:,}"]
    if snapshot.failed_by_cause:
        counts[-1] += (
            f" ({', '.join(f'{printable(cause)} {n:,}' for cause, n in snapshot.failed_by_cause.items())})"
        )
    if snapshot.retried:
        counts.append(f"retried {snapshot.retried:,}")
    yield "   ".join(counts)
    yield f"tokens {_short(snapshot.tokens)} ({_short(snapshot.tokens_per_minute)}/min)   {_money(snapshot)}"
    if snapshot.last_failure:
        yield f"last failure: {' '.join(printable(snapshot.last_failure).split())}"


def _money(snapshot: Snapshot) -> str:
    if snapshot.unpriced:
        amount = f"${snapshot.known_cost_usd:.2f} and " if snapshot.known_cost_usd else ""
        return f"spent {amount}unknown ({snapshot.unpriced:,} without a known price)"
    projected = snapshot.projected_cost_usd
    return f"spent ${snapshot.known_cost_usd:.2f}" + (f", ${projected:.2f} by the end" if projected else "")


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _short(count: float) -> str:
    for limit, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= limit:
            return f"{count / limit:.1f}{unit}"
    return f"{count:.0f}"
