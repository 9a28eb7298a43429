"""The effect of a target on an input: exact lengths, how they are distributed, what would fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from hermes.core import JSONObject
from hermes.data.compress.run.job import CompressResult, InputKind

_BINS = 12


@dataclass
class Analysis:
    target: int
    lengths: list[int] = field(default_factory=list)
    over: int = 0
    compressible: int = 0
    """How many of those over the target would fit."""
    protected: int = 0
    """How many of those that would fit need tool outputs of protected turns folded."""
    tokens_after: int = 0
    bad: int = 0

    def add(self, done: CompressResult) -> None:
        if done.kind is InputKind.BAD:
            self.bad += 1
            return
        self.lengths.append(done.metrics["original_tokens"])
        self.over += done.metrics["original_tokens"] > self.target
        self.compressible += done.metrics["was_compressed"]
        self.protected += done.metrics["protected_outputs_folded"] > 0
        self.tokens_after += done.metrics["compressed_tokens"] if done.kind is InputKind.ROW else 0

    def to_json(self) -> JSONObject:
        lengths = sorted(self.lengths)
        return {
            "rows": len(lengths),
            "bad_rows": self.bad,
            "target_max_tokens": self.target,
            "tokens": sum(lengths),
            "tokens_after": self.tokens_after,
            "mean": fmean(lengths) if lengths else 0.0,
            **{f"p{p}": _percentile(lengths, p) for p in (50, 90, 99)},
            "max": lengths[-1] if lengths else 0,
            "over_target": self.over,
            "would_fit": self.compressible,
            "would_fold_protected": self.protected,
            "would_be_kept_aside": self.over - self.compressible,
            "histogram": [
                {"from": low, "to": high, "rows": count} for low, high, count in histogram(lengths)
            ],
        }


def histogram(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """(from, to, rows) of equal bins of round width that cover all lengths; `to` is exclusive."""
    if not lengths:
        return []
    width = _round_up(max(lengths) // _BINS + 1)
    counts = [0] * (max(lengths) // width + 1)
    for length in lengths:
        counts[length // width] += 1
    return [(n * width, (n + 1) * width, count) for n, count in enumerate(counts)]


def _round_up(width: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50 …"""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if factor * step >= width:
                return factor * step
        step *= 10


def _percentile(ordered: Sequence[int], percent: int) -> int:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0
