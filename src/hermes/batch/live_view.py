"""The live view of a run on a terminal: four lines that are redrawn in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from hermes.batch.progress import Progress, Snapshot
from hermes.safety.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_FRAMES_PER_SECOND = 4


@contextmanager
def live_view(progress: Progress, out: TextIO, title: str) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    with Live(
        console=Console(file=out),
        get_renderable=lambda: render(progress.snapshot(), title),
        refresh_per_second=_FRAMES_PER_SECOND,
    ):
        yield


def render(snapshot: Snapshot, title: str) -> RenderableType:
    """The picture of one moment."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bar = Table.grid(padding=(0, 2))
    settled = snapshot.finished + snapshot.failed
    share = f"{settled / snapshot.total:.0%}" if snapshot.total else ""
    name = Text(printable(title), style="bold", no_wrap=True, overflow="ellipsis")
    speed = f"{_rate(snapshot.rate_per_s)}   ETA {_clock(snapshot.eta_s)}"
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
        known = f"${snapshot.known_cost_usd:.2f} and " if snapshot.known_cost_usd else ""
        return f"spent {known}unknown ({snapshot.unpriced:,} without a known price)"
    projected = snapshot.projected_cost_usd
    return f"spent ${snapshot.known_cost_usd:.2f}" + (f", ${projected:.2f} by the end" if projected else "")


def _rate(per_s: float) -> str:
    return f"{per_s:.1f}/s" if per_s >= 0.1 or not per_s else f"{60 * per_s:.1f}/min"


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
