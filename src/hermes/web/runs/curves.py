"""The curves of a run: which metrics are shown, in which panels; raw values and a smoothed line.

`RunMetrics` keeps the metrics of the runs that were looked at last, and reads on as their files grow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hermes.training.monitor.incidents.alerts import AlertRule
from hermes.training.monitor.series import HIDDEN, RunSeries

SMOOTHING = 0.9


class Curve(NamedTuple):
    steps: list[int]
    values: list[float]
    smooth: list[float]
    """Exponential moving average of the values up to each."""


class Panel(NamedTuple):
    """One figure: one metric, or several of one kind."""

    name: str
    """The name of its first metric; unique."""
    title: str
    metrics: tuple[str, ...]
    labels: tuple[str, ...] = ()
    """The labels of its lines, if there are several."""


class PanelRule(NamedTuple):
    """The metrics of a run that a panel shows."""

    title: str
    metrics: tuple[str, ...]
    """Names; one that ends with `/*` is every metric of that kind."""


PANELS = (
    PanelRule("Reward", ("reward/mean",)),
    PanelRule("Reward quantiles", ("reward/p10", "reward/p50", "reward/p90")),
    PanelRule("Reward by environment", ("env/*/reward",)),
    PanelRule("Reward and held-out reward", ("eval/mean_reward", "reward/mean")),
    PanelRule("Held-out success, share of tasks", ("eval/success_rate",)),
    PanelRule("Held-out score", ("eval/percent_correct",)),
    PanelRule("True reward", ("reward/true",)),
    PanelRule("Loss", ("train/loss",)),
    PanelRule("Held-out loss", ("eval/loss",)),
    PanelRule("Accuracy", ("rewards/accuracy", "eval/rewards/accuracy")),
    PanelRule("Margin", ("rewards/margin", "eval/rewards/margin")),
    PanelRule("Success, share of rollouts", ("success/*",)),
    PanelRule("Positive reward, share of rollouts", ("reward/positive",)),
    PanelRule("Groups with signal", ("health/group_signal",)),
    PanelRule("Entropy", ("health/entropy",)),
    PanelRule("KL to the reference", ("kl/reference",)),
    PanelRule("Why rollouts ended", ("stop/*",)),
    PanelRule("Clip fraction", ("health/clip_fraction",)),
    PanelRule("Sampler–trainer gap", ("health/logprob_gap",)),
    PanelRule("Staleness", ("health/staleness", "health/staleness_max")),
    PanelRule("Truncated", ("health/truncated",)),
    PanelRule("Tool errors", ("health/tool_errors",)),
    PanelRule("Rollouts that name a forbidden path", ("health/forbidden_paths",)),
    PanelRule("Duplicates in a group", ("health/duplicates",)),
    PanelRule("Tokens a sequence", ("data/sequence_tokens",)),
    PanelRule("Seconds of step and wait", ("time/step_s", "time/wait_s")),
    PanelRule("Gradient norm", ("optim/grad_norm",)),
    PanelRule("Learning rate", ("train/learning_rate",)),
    PanelRule("Peak memory of the engine, bytes", ("optim/peak_bytes",)),
)
"""Metrics that are shown first, in this order; every other metric follows by name."""
_MAX_LINES = 6


def panels(names: Iterable[str]) -> list[Panel]:
    """The panels of a run that has these metrics."""
    left = set(names) - HIDDEN
    chosen: list[Panel] = []
    used: set[str] = set()
    for rule in PANELS:
        metrics = tuple(name for pattern in rule.metrics for name in _matching(pattern, left))[:_MAX_LINES]
        if not metrics or metrics[0] in used or (len(rule.metrics) > 1 and set(metrics) <= used):
            continue
        chosen.append(Panel(metrics[0], rule.title, metrics, _labels(metrics)))
        used.update(metrics)
    return [*chosen, *(Panel(name, name, (name,)) for name in sorted(left - used))]


def _matching(pattern: str, names: set[str]) -> list[str]:
    """The names that a pattern with one `*` stands for, in order."""
    if "*" not in pattern:
        return [pattern] if pattern in names else []
    head, _, tail = pattern.partition("*")
    return sorted(name for name in names if name.startswith(head) and name.endswith(tail))


def _labels(metrics: Sequence[str]) -> tuple[str, ...]:
    """Names that tell the lines of a panel apart: their names without the words that all of them have."""
    if len(metrics) < 2:
        return ()
    parts = [name.split("/") for name in metrics]
    while len({words[0] for words in parts}) == 1 and all(len(words) > 1 for words in parts):
        parts = [words[1:] for words in parts]
    while len({words[-1] for words in parts}) == 1 and all(len(words) > 1 for words in parts):
        parts = [words[:-1] for words in parts]
    return tuple("/".join(words).removesuffix("_s").replace("_", " ") for words in parts)


def curve(series: RunSeries, name: str, smoothing: float = SMOOTHING) -> Curve:
    """The points of a metric that are kept, and their moving average."""
    steps, values = series.points(name)
    return Curve(steps, [*map(_short, values)], [*map(_short, moving_average(values, smoothing))])


def moving_average(values: Sequence[float], smoothing: float) -> list[float]:
    """Exponential, corrected for its start, so that the first value is the first value."""
    total, weight, averages = 0.0, 0.0, []
    for value in values:
        total = smoothing * total + (1 - smoothing) * value
        weight = smoothing * weight + (1 - smoothing)
        averages.append(total / weight)
    return averages


def _short(value: float) -> float:
    return float(f"{value:.6g}")


_MAX_FILES = 32


@dataclass(slots=True)
class _CachedFile:
    series: RunSeries
    lock: threading.Lock = field(default_factory=threading.Lock)


class MetricsCache:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, _CachedFile] = {}

    @contextmanager
    def reading(self, path: Path, rules: Sequence[AlertRule] = ()) -> Iterator[RunSeries]:
        """The series as the file is now. It does not change within the `with`."""
        with self._lock:
            cached = self._files.pop(path, None) or _CachedFile(RunSeries(path))
            self._files[path] = cached
            while len(self._files) > _MAX_FILES:
                self._files.pop(next(iter(self._files)))
        with cached.lock:
            cached.series = cached.series.refreshed(rules)
            yield cached.series

    def version(self, path: Path) -> tuple[int, int, int]:
        """Changes whenever the file does."""
        try:
            state = path.stat()
        except OSError:
            return (0, 0, 0)
        return (state.st_ino, state.st_size, state.st_mtime_ns)
