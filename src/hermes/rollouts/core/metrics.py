"""Counters and recent rates, and their rendering as Prometheus text. Pure: time is an argument."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

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


PREFIX = "hermes_rollouts_"
HELP = {
    "requests_total": "Requests, by path and status.",
    "groups_received_total": "Groups that environments posted.",
    "posts_refused_total": "Posts that were refused, by reason: the queue is full, or a group is held.",
    "batches_served_total": "Batches that trainers took, redelivered ones included.",
    "batches_redelivered_total": "Batches that were served again under their lease.",
    "batches_lost_total": "Batches whose connection broke before they had arrived.",
    "step": "The step of the run: where it started, plus the batches that were formed.",
    "queue_groups": "Groups that wait for a trainer.",
    "queue_sequences": "Sequences in those groups.",
    "queue_bytes": "Size of those groups.",
    "queue_oldest_age_seconds": "Age of the oldest group that waits; 0 if none does.",
    "set_aside_groups": "Queued groups whose size fits no batch of the trainer.",
    "buffered_groups": "Parts of groups that wait for the rest of their group.",
    "kept_groups": "Groups that are buffered, queued or leased.",
    "kept_bytes": "Size of those groups.",
    "leases_outstanding": "Batches that a trainer has taken and not acknowledged.",
    "leases_lost": "Batches that wait to be served again.",
    "envs_connected": "Environments that are connected.",
    "log_bytes": "Size of the log on disk; only with --state-dir.",
    "log_segments": "Files of the log.",
    "log_flushes_total": "Flushes of the log to disk.",
    "log_flush_seconds_total": "Time that those flushes took.",
}
