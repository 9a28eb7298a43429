"""How good a reward model is on pairs it was not trained on: accuracy, calibration, length bias. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hermes.training.preference.losses import sigmoid

_BINS = 10


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """The scores of the two answers of a pair, and their lengths."""

    chosen: float
    rejected: float
    chosen_words: int
    rejected_words: int
    spread: float = 0.0
    """Standard deviation over the ensemble of the difference of the two."""


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    low: float
    high: float
    pairs: int
    confidence: float
    """Mean of the stated probability that the preferred answer is the better one."""
    accuracy: float


@dataclass(frozen=True, slots=True)
class RewardReport:
    pairs: int
    accuracy: float
    ece: float
    """Expected calibration error: mean distance between confidence and accuracy, weighted by pairs."""
    bins: tuple[CalibrationBin, ...]
    length_correlation: float
    """Pearson's, of a pair's difference of scores with its difference of lengths in words."""
    longer_preferred: float
    """How often the longer answer scores higher, over pairs of unequal length."""
    longer_chosen: float
    """How often the longer one was really preferred: a model without length bias has the same share."""
    spread: float
    """Mean standard deviation over the ensemble; 0 for one model."""


def report_of(pairs: Sequence[ScoredPair]) -> RewardReport:
    """At least one pair."""
    right = [pair.chosen > pair.rejected for pair in pairs]
    bins = _bins(pairs, right)
    ece = sum(group.pairs * abs(group.confidence - group.accuracy) for group in bins) / len(pairs)
    unequal = [pair for pair in pairs if pair.chosen_words != pair.rejected_words]
    longer = [(pair.chosen > pair.rejected) == (pair.chosen_words > pair.rejected_words) for pair in unequal]
    return RewardReport(
        pairs=len(pairs),
        accuracy=sum(right) / len(pairs),
        ece=ece,
        bins=bins,
        length_correlation=_correlation(
            [pair.chosen - pair.rejected for pair in pairs],
            [float(pair.chosen_words - pair.rejected_words) for pair in pairs],
        ),
        longer_preferred=_share(longer),
        longer_chosen=_share([pair.chosen_words > pair.rejected_words for pair in unequal]),
        spread=statistics.fmean(pair.spread for pair in pairs),
    )


def _bins(pairs: Sequence[ScoredPair], right: Sequence[bool]) -> tuple[CalibrationBin, ...]:
    """By confidence, from a half to certain; bins without pairs are left out."""
    groups: list[list[tuple[float, bool]]] = [[] for _ in range(_BINS)]
    for pair, is_right in zip(pairs, right, strict=True):
        confidence = sigmoid(abs(pair.chosen - pair.rejected))
        groups[min(_BINS - 1, int((confidence - 0.5) * 2 * _BINS))].append((confidence, is_right))
    width = 0.5 / _BINS
    return tuple(
        CalibrationBin(
            0.5 + index * width,
            0.5 + (index + 1) * width,
            len(group),
            statistics.fmean(confidence for confidence, _ in group),
            sum(is_right for _, is_right in group) / len(group),
        )
        for index, group in enumerate(groups)
        if group
    )


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 0.5


def _correlation(left: Sequence[float], right: Sequence[float]) -> float:
    if len(left) < 2 or len(set(left)) < 2 or len(set(right)) < 2:
        return 0.0
    return statistics.correlation(left, right)


_SIZE, _EDGE = 320, 40


def reliability_svg(report: RewardReport, title: str) -> str:
    """Accuracy against confidence: a calibrated model is on the diagonal; a point's area is its pairs."""
    inner = _SIZE - 2 * _EDGE

    def x(value: float) -> float:
        return _EDGE + (value - 0.5) * 2 * inner

    def y(value: float) -> float:
        return _SIZE - _EDGE - value * inner

    points = "".join(
        f'<circle cx="{x(group.confidence):.1f}" cy="{y(group.accuracy):.1f}" '
        f'r="{3 + 12 * (group.pairs / report.pairs) ** 0.5:.1f}" fill="#2b6cb0" fill-opacity=".7">'
        f"<title>{group.pairs} pairs: confidence {group.confidence:.2f}, right {group.accuracy:.2f}</title>"
        "</circle>"
        for group in report.bins
    )
    marks = "".join(
        f'<text x="{x(value):.0f}" y="{_SIZE - _EDGE + 16}" text-anchor="middle">{value:g}</text>'
        for value in (0.5, 0.75, 1.0)
    ) + "".join(
        f'<text x="{_EDGE - 6}" y="{y(value) + 4:.0f}" text-anchor="end">{value:g}</text>'
        for value in (0.0, 0.5, 1.0)
    )
    caption = f"accuracy {report.accuracy:.1%}, ECE {report.ece:.3f}, {report.pairs} pairs"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {_SIZE}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="currentColor">'
        f"<title>{escape(title)}: {escape(caption)}</title>"
        f'<path d="M{x(0.5)} {y(0.5)}L{x(1)} {y(1)}" stroke="currentColor" stroke-dasharray="4 4"/>'
        f'<path d="M{_EDGE} {_EDGE}V{_SIZE - _EDGE}H{_SIZE - _EDGE}" fill="none" stroke="currentColor"/>'
        f'{marks}{points}<text x="{_SIZE / 2}" y="16" text-anchor="middle">{escape(title)}</text>'
        f'<text x="{_SIZE / 2}" y="30" text-anchor="middle">{escape(caption)}</text>'
        f'<text x="{_SIZE / 2}" y="{_SIZE - 6}" text-anchor="middle">confidence</text>'
        f'<text x="12" y="{_SIZE / 2}" text-anchor="middle" transform="rotate(-90 12 {_SIZE / 2})">'
        "share right</text></svg>\n"
    )
