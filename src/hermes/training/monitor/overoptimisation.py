"""Recognises a policy that pleases its reward model and no longer what the reward model stands for.

The proxy is the reward that is trained on. The truth is a measure that is not trained on: the true reward
where an environment has one, and the share of held-out human preferences that the policy agrees with. A run
is over-optimised once either has fallen clearly below its best while the proxy is above what it was then.
All are means over a window of measurements, and "clearly" is in units of the measure's own noise, the median
change from one measurement to the next: the best of many windows is above a constant by three units, so that
less than five are no fall.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from hermes.disk.files import read_text

OVEROPTIMISED = "over-optimised"
"""How the reason of such an end begins."""
WINDOW = 4
_NOISE_UNITS = 5.0
_LEAST_FALL = 0.02


TRUTHS = ("reward/true", "eval/preference")
"""Metrics that say what the reward model stands for."""


@dataclass(slots=True)
class FallDetector:
    """Takes one measurement of the proxy and of one truth after the other."""

    window: int = WINDOW
    """Measurements that are averaged."""
    _proxies: list[float] = field(default_factory=list)
    _truths: list[float] = field(default_factory=list)

    def add(self, proxy: float, truth: float) -> str | None:
        """Why the run should end; None: it should go on."""
        self._proxies.append(proxy)
        self._truths.append(truth)
        if len(self._truths) < 2 * self.window:
            return None
        proxies, truths = _means(self._proxies, self.window), _means(self._truths, self.window)
        best = max(range(len(truths)), key=truths.__getitem__)
        fall, rise = truths[best] - truths[-1], proxies[-1] - proxies[best]
        if fall <= max(_LEAST_FALL, self._noise(self._truths)) or rise <= self._noise(self._proxies):
            return None
        return (
            f"{OVEROPTIMISED}: the reward model's score rose by {rise:.3f} while what it stands for fell by "
            f"{fall:.3f} from its best of {truths[best]:.3f}"
        )

    def _noise(self, values: list[float]) -> float:
        """A difference of two windows that is no chance."""
        changes = [abs(new - old) for old, new in pairwise(values)]
        return _NOISE_UNITS * statistics.median(changes) / math.sqrt(self.window)


class OveroptimisationGuard:
    """Watches every truth that a run measures."""

    def __init__(self) -> None:
        self._detectors = {name: FallDetector() for name in TRUTHS}

    def judge(self, metrics: Mapping[str, float]) -> str | None:
        """Why the run should end after a step with these metrics; None: it should go on."""
        proxy = metrics.get("reward/mean")
        if proxy is None:
            return None
        reasons = [
            detector.add(proxy, metrics[name])
            for name, detector in self._detectors.items()
            if name in metrics
        ]
        return next(filter(None, reasons), None)

    def replay(self, rows: Iterable[Mapping[str, float]]) -> None:
        """Takes the measurements of an earlier process of the run."""
        for row in rows:
            self.judge(row)


def _means(values: list[float], window: int) -> list[float]:
    return [statistics.fmean(values[end - window : end]) for end in range(window, len(values) + 1)]


def read_rows(folder: Path, last_step: int) -> list[dict[str, float]]:
    """The metrics of the run's steps up to that one."""
    lines = (read_text(folder / "metrics.jsonl") or "").splitlines()
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return [row for row in rows if row["step"] <= last_step]
