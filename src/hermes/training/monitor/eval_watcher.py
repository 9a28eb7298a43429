"""Evaluations on held-out tasks that an environment runs during training and writes to a folder.

Every evaluation replaces `metrics.json` in the folder. It belongs to the weights that were newest when it
began, although newer ones may have been published while it ran. Each evaluation is returned once; those from
before this process are not returned.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

from hermes.core import parse_object

logger = logging.getLogger(__name__)
_FILE = "metrics.json"
EVAL_SCORES = ("eval/reward", "eval/mean_reward", "eval/success_rate", "eval/percent_correct")
"""The first of these that an evaluation has is its score."""


class Evaluation(NamedTuple):
    step: int
    """The step whose weights were the newest when it began."""
    value: float
    """Its score."""
    metrics: dict[str, float]
    """All its numbers, as eval/NAME."""


class EvalWatcher:
    def __init__(self, folder: Path | None) -> None:
        """`folder` None: the environment does not evaluate."""
        self._path = folder / _FILE if folder else None
        self._read_ns = self._written_ns()
        self._published: list[tuple[float, int]] = []
        """Time and step of every publication."""

    def record_published(self, step: int) -> None:
        self._published.append((time.time(), step))

    def poll(self) -> Evaluation | None:
        """The newest evaluation; None if there is none since the last call."""
        written_ns = self._written_ns()
        if self._path is None or written_ns == self._read_ns:
            return None
        self._read_ns = written_ns
        try:
            evaluation: Any = parse_object(self._path.read_text(encoding="utf-8"))
            took_s = float(evaluation["config_general"]["total_evaluation_time_seconds"])
            metrics = evaluation["results"]["all"]
            value = next(float(metrics[name]) for name in EVAL_SCORES if name in metrics)
            numbers = {name: float(number) for name, number in metrics.items() if _is_number(number)}
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            # An environment may write anything there.
            logger.warning("%s has no evaluation that can be used: %r", self._path, error)
            return None
        began_s = written_ns / 1e9 - took_s
        steps = [step for at_s, step in self._published if at_s <= began_s]
        return Evaluation(steps[-1], value, numbers) if steps and math.isfinite(value) else None

    def _written_ns(self) -> int:
        """When the file was written; 0: it does not exist."""
        try:
            return self._path.stat().st_mtime_ns if self._path else 0
        except OSError:
            return 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
