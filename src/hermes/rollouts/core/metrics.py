"""Counters and recent rates, and their rendering as Prometheus text. Pure: time is an argument."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from hermes.rollouts.core.metric_help import HELP, PREFIX

RATE_WINDOW_S = 60


class Rate:
    """Events a second over the last minute."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()

    def add(self, count: int, now_s: float) -> None:
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + count)
        else:
            self._seconds.append((second, count))
        self._drop_old(now_s)

    def per_second(self, now_s: float) -> float:
        self._drop_old(now_s)
        return sum(count for _, count in self._seconds) / RATE_WINDOW_S

    def _drop_old(self, now_s: float) -> None:
        while self._seconds and self._seconds[0][0] <= now_s - RATE_WINDOW_S:
            self._seconds.popleft()


class Metrics:
    def __init__(self) -> None:
        self.groups = Rate()
        self.sequences = Rate()
        self.batches = Rate()
        self._counters: Counter[tuple[str, tuple[tuple[str, object], ...]]] = Counter()

    def count(self, name: str, amount: int = 1, **labels: object) -> None:
        """Adds to a counter; its name ends in `_total`."""
        self._counters[name, tuple(labels.items())] += amount

    def render(self, gauges: Mapping[str, float]) -> str:
        """The text a Prometheus server scrapes."""
        lines: list[str] = []
        series = [(name, _format_labels(labels), float(n)) for (name, labels), n in self._counters.items()]
        series += [(name, "", value) for name, value in gauges.items()]
        previous = ""
        for name, labels, value in sorted(series):
            if name != previous:
                kind = "counter" if name.endswith("_total") else "gauge"
                if name in HELP:
                    lines.append(f"# HELP {PREFIX}{name} {HELP[name]}")
                lines.append(f"# TYPE {PREFIX}{name} {kind}")
                previous = name
            lines.append(
                f"{PREFIX}{name}{{{labels}}} {value:.10g}" if labels else f"{PREFIX}{name} {value:.10g}"
            )
        return "\n".join(lines) + "\n"


def _format_labels(labels: tuple[tuple[str, object], ...]) -> str:
    return ",".join(f'{key}="{_escape(str(value))}"' for key, value in labels)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
