"""Progress: arithmetic under a clock of our own, and both views on real streams."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import threading
from collections.abc import Iterator

import pytest

from hermes.batch.journal import SampleState
from hermes.batch.progress import BatchProgress, cause_of, open_view
from tests.batch.made import usage
from tests.waiting import wait_until


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def finish(
    progress: BatchProgress,
    state: SampleState = SampleState.DONE,
    reason: str | None = None,
    cost: float | None = 0.5,
) -> None:
    progress.dispatched()
    progress.finished(state, reason, 150, cost)


def test_counts_follow_what_happens(clock: Clock) -> None:
    progress = BatchProgress(clock)
    progress.started(10, 3)
    for _ in range(3):
        progress.dispatched()
    progress.finished(SampleState.DONE, None, sum(usage().values()), 0.5)
    progress.finished(SampleState.FILTERED, "no reasoning", sum(usage().values()), 0.5)
    got = progress.snapshot()
    assert (got.total, got.finished, got.done, got.filtered, got.in_flight, got.left) == (10, 5, 1, 1, 1, 5)


def test_failures_are_counted_by_cause_and_leave_nothing_in_flight(clock: Clock) -> None:
    progress = BatchProgress(clock)
    progress.started(4, 0)
    finish(progress, SampleState.FAILED, "ProviderError: http://h answered 500: x", None)
    finish(progress, SampleState.FAILED, "ProviderError: http://h answered 503: y", None)
    finish(progress, SampleState.FAILED, "SandboxError: gone", None)
    got = progress.snapshot()
    assert got.failed_by_cause == {"ProviderError": 2, "SandboxError": 1}
    assert (got.failed, got.last_failure, got.in_flight, got.left, got.unpriced) == (
        3,
        "SandboxError: gone",
        0,
        1,
        0,
    )


def test_a_retried_sample_and_one_lost_with_its_worker_are_no_longer_in_flight(clock: Clock) -> None:
    progress = BatchProgress(clock)
    progress.started(4, 0)
    for _ in range(4):
        progress.dispatched()
    progress.retried("ProviderError: busy")
    progress.gauges("w", 5, 10, 0)
    progress.worker_died("w", lost=2)
    got = progress.snapshot()
    assert (got.in_flight, got.retried, got.worker_deaths, got.left) == (1, 1, 1, 4)
    assert (got.calls_in_flight, got.call_limit) == (0, 0)


def test_rate_eta_and_tokens_a_minute_come_from_the_window(clock: Clock) -> None:
    progress = BatchProgress(clock)
    progress.started(1100, 0)
    for _ in range(100):  # slow: one a second
        clock.now_s += 1
        finish(progress)
    for _ in range(240):  # then four
        clock.now_s += 0.25
        finish(progress)
    got = progress.snapshot()
    assert got.elapsed_s == 160
    assert got.rate_per_s == pytest.approx(4, rel=0.02)
    assert got.eta_s == pytest.approx((1100 - 340) / 4, rel=0.02)
    assert got.tokens_per_minute == pytest.approx(4 * 150 * 60, rel=0.02)


def test_a_slow_run_has_a_rate_too_and_a_stalled_one_loses_it(clock: Clock) -> None:
    progress = BatchProgress(clock)
    progress.started(100, 0)
    for _ in range(30):
        clock.now_s += 120
        finish(progress)
    assert progress.snapshot().rate_per_s == pytest.approx(1 / 120)
    clock.now_s += 120 * 20
    assert progress.snapshot().rate_per_s == pytest.approx(1 / 240)


def test_nothing_settled_has_no_eta_and_no_projection(clock: Clock) -> None:
    progress = BatchProgress(clock)
    progress.started(5, 0)
    got = progress.snapshot()
    assert (got.rate_per_s, got.eta_s, got.projected_cost_usd, got.known_cost_usd) == (0.0, None, None, 0.0)


def test_cost_is_projected_over_what_is_left_unless_a_price_is_unknown(clock: Clock) -> None:
    progress = BatchProgress(clock)
    progress.started(10, 2)
    finish(progress, cost=0.25)
    finish(progress, cost=0.75)
    assert progress.snapshot().projected_cost_usd == pytest.approx(4.0)
    finish(progress, cost=None)
    got = progress.snapshot()
    assert (got.known_cost_usd, got.unpriced, got.projected_cost_usd) == (1.0, 1, None)


def test_gauges_are_summed_over_the_workers_latest(clock: Clock) -> None:
    progress = BatchProgress(clock)
    progress.dispatched()
    progress.gauges("a", 10, 20, 3)
    progress.gauges("b", 5, 40, 0)
    progress.gauges("a", 12, 16, 1)
    got = progress.snapshot()
    assert (got.calls_in_flight, got.call_limit, got.calls_waiting) == (17, 56, 1)
    progress.finished(SampleState.DONE, None, sum(usage().values()), 0.5)
    assert progress.snapshot().calls_in_flight == 0


def test_a_cause_is_the_kind_of_failure() -> None:
    assert [cause_of(reason) for reason in ("E: a: b", "worker died", None)] == [
        "E",
        "worker died",
        "unknown",
    ]


def test_elsewhere_than_on_a_terminal_plain_lines_are_written_and_one_at_the_end() -> None:
    out = io.StringIO()
    with open_view(as_json=False, stream=out, title="ru\x1b[2Jn", interval_s=0.01) as progress:
        progress.started(4, 1)
        progress.dispatched()
        wait_until(lambda: "1 in flight" in out.getvalue())
        finish(progress)
        seen = out.getvalue().count("\n")
        wait_until(lambda: out.getvalue().count("\n") >= seen + 2)
        before = out.getvalue().splitlines()[-1]
        finish(progress, SampleState.FAILED, "ProviderError: x", None)
    *lines, last = out.getvalue().splitlines()
    assert any(re.fullmatch(r"run: 1/4 \(25%\)  1 in flight for [0-9.]+ s", line) for line in lines)
    assert re.fullmatch(
        r"run: 2/4 \(50%\)  [0-9.]+/(s|min)  [0-9a-z .]+ left  spent \$0\.50, \$1\.50 by the end", before
    )
    assert last.startswith("run: 3/4 (75%)  1 failed  ") and "  in " in last


def test_json_lines_are_written_if_asked_for_and_one_at_the_end() -> None:
    out = io.StringIO()
    with open_view(as_json=True, stream=out, title="run", interval_s=0.01) as progress:
        progress.started(2, 0)
        finish(progress)
        wait_until(lambda: out.getvalue().count("\n") >= 2)
        finish(progress, SampleState.FAILED, "ProviderError: \x1b[31m", None)
    *before, last = (json.loads(line) for line in out.getvalue().splitlines())
    assert {line["event"] for line in before} == {"progress"}
    assert (last["event"], last["title"], last["done"], last["failed"], last["left"]) == (
        "end",
        "run",
        1,
        1,
        0,
    )


def test_a_stream_that_is_closed_does_not_stop_the_run() -> None:
    out = io.StringIO()
    with open_view(as_json=False, stream=out) as progress:
        progress.started(1, 0)
        out.close()
    assert progress.snapshot().total == 1


class Terminal:
    """A real pseudo-terminal; what is drawn on it is gathered."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self._drawn = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            self._drawn += data

    def close(self) -> str:
        self.stream.close()
        self._thread.join()
        os.close(self._master)
        return self._drawn.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    yield Terminal()


def test_on_a_terminal_the_state_is_drawn(terminal: Terminal) -> None:
    with open_view(as_json=False, stream=terminal.stream, title="my [b]run[/b]") as progress:
        progress.started(1200, 200)
        for _ in range(3):
            finish(progress)
        finish(progress, SampleState.FAILED, "ProviderError: http://h\x1b[2J answered 500", None)
        progress.dispatched()
        progress.gauges("w", 190, 210, 12)
    drawn = terminal.close()
    for part in (
        "my [b]run[/b]",
        "204 / 1,200  17%",
        "model calls 190 of 210 allowed   12 waiting",
        "done 3   filtered 0   failed 1 (ProviderError 1)",
        "tokens 600",
        "spent $1.50",
        "last failure: ProviderError: http://h answered 500",
    ):
        assert part in drawn
    assert "ETA" in drawn and "\x1b[2J" not in drawn


def test_a_terminal_gets_json_if_asked_for_and_plain_lines_if_it_cannot_draw(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_view(as_json=True, stream=terminal.stream) as progress:
        progress.started(1, 0)
    monkeypatch.setenv("TERM", "dumb")
    with open_view(as_json=False, stream=terminal.stream) as progress:
        progress.started(2, 0)
    first, second = terminal.close().splitlines()
    assert json.loads(first)["total"] == 1
    assert second.startswith(": 0/2 (0%)")
