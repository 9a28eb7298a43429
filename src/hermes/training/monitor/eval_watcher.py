"""Evaluations on held-out tasks that an environment makes beside the training, as it leaves them in a folder.

`metrics.json` there is replaced by every evaluation. One begins with the weights that were newest then; while
it runs they may move on by a few steps. Each is told once; those from before this process are not.
"""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)
_FILE = "metrics.json"
_VALUES = ("eval/mean_reward", "eval/success_rate", "eval/percent_correct")
"""The first that an evaluation has is its value."""


class Evaluation(NamedTuple):
    step: int
    """Whose weights were the newest when it began."""
    value: float


class EvalWatcher:
    def __init__(self, folder: Path | None) -> None:
        """`folder` None: nobody evaluates."""
        self._path = folder / _FILE if folder else None
        self._told_ns = self._written_ns()
        self._published: list[tuple[float, int]] = []
        """When the weights of which step became those that are sampled."""

    def published(self, step: int) -> None:
        self._published.append((time.time(), step))

    def newest(self) -> Evaluation | None:
        """None: there is none that was not told yet."""
        written_ns = self._written_ns()
        if self._path is None or written_ns == self._told_ns:
            return None
        self._told_ns = written_ns
        try:
            found: Any = json.loads(self._path.read_text(encoding="utf-8"))
            took_s = float(found["config_general"]["total_evaluation_time_seconds"])
            metrics = found["results"]["all"]
            value = next(float(metrics[name]) for name in _VALUES if name in metrics)
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            # An environment may write there what it likes.
            logger.warning("%s does not say what is best: %r", self._path, error)
            return None
        before = [step for at_s, step in self._published if at_s <= written_ns / 1e9 - took_s]
        return Evaluation(before[-1], value) if before and math.isfinite(value) else None

    def _written_ns(self) -> int:
        """0: not yet."""
        try:
            return self._path.stat().st_mtime_ns if self._path else 0
        except OSError:
            return 0
