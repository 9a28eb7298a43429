"""Progress lines of a quickstart: count, rate and remaining time of a stage, at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

from hermes.batch.journal import SampleState
from hermes.batch.progress import BatchProgress
from hermes.core.clock import duration, rate_text
from hermes.training.session import ProgressCallback

INTERVAL_S = 5.0
"""Between two lines of one stage."""
FORESEEABLE = 1 / 20
"""Share that must be done before the remaining time is estimated: the first items finish late and
together."""


class StageMeter:
    """Counts the finished items of a stage, and reports at intervals and at the end."""

    def __init__(
        self,
        label: str,
        total: int,
        progress: ProgressCallback,
        clock: Callable[[], float] = time.monotonic,
        *,
        set_up: bool = False,
    ) -> None:
        """`set_up`: the first item takes longer, as a trainer's step does; the rate is that of the others."""
        self._label, self._total, self._progress, self._clock = label, total, progress, clock
        self._began_s = self._reported_s = clock()
        self._done = 0
        self._rate_from: tuple[float, int] | None = None if set_up else (self._began_s, 0)
        """Since when, and from which item on, the rate is counted."""

    def add(self, count: int = 1, note: str = "") -> None:
        self._done += count
        now_s = self._clock()
        if self._done >= self._total or now_s - self._reported_s >= INTERVAL_S:
            self._reported_s = now_s
            self._progress(self._line(now_s) + (f"  {note}" if note else ""))
        if self._rate_from is None:
            self._rate_from = now_s, self._done

    def _line(self, now_s: float) -> str:
        line = f"   {self._label} {self._done}/{self._total}"
        since_s, before = self._rate_from or (now_s, 0)
        if now_s <= since_s:
            return line
        rate = (self._done - before) / (now_s - since_s)
        if self._done >= self._total:
            return f"{line}  {rate_text(rate)}  {duration(now_s - self._began_s)}"
        if self._done < self._total * FORESEEABLE:
            return line
        return f"{line}  {rate_text(rate)}  {duration((self._total - self._done) / rate)} left"


class BatchMeter(BatchProgress):
    """Counts the finished samples of a batch at a stage's meter."""

    def __init__(self, meter: StageMeter) -> None:
        super().__init__()
        self._meter = meter

    def finished(self, state: SampleState, reason: str | None, tokens: int, cost_usd: float | None) -> None:
        super().finished(state, reason, tokens, cost_usd)
        self._meter.add()
