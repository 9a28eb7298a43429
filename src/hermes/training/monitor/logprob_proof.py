"""Whether the logprobs that an environment states are those of its tokens under the sampling weights. Pure.

For every checked token there is the stated logprob and the one that its sampler gives, at the temperature
that sampled. Their difference is divided by 1 - p: rounding moves the logits, and the logprob of a token of
probability p by 1 - p of that. So the noise of arithmetic has one size for confident and for uncertain
tokens, and a run is judged by the distribution over tokens, not by a mean that confident tokens dilute:

- spread: the median of the absolute differences;
- bias: the median of the differences, which rounding leaves at 0 and a wrong temperature or factor does not;
- tail: how many tokens are far off, which a mask that is wrong in a few places shows.

The limits follow from `unit`, the size of the noise. Before the first batch it is that of the dtype, and the
difference of trainer and sampler on the probe; then that of the run's healthy batches: the first ones, and
the median of the last ones, because noise may grow while the weights move. A strike is not forgotten when the
next batch is healthy: two strikes among the last batches end the run. A batch that is wrong beyond doubt,
sampled by weights that are known, ends it immediately. What rounding between two engines explains can be
accepted (`accept_rounding`): importance weights correct it.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes.training.data.sampling_distribution import LogprobBounds

ENOUGH_TOKENS = 16
"""Fewer are judged together with those of the batches before."""
_ENOUGH_OF_A_SEQUENCE = 8
_STRIKES, _JUDGED_BATCHES = 2, 6
_FIRST_BATCHES, _LAST_BATCHES = 5, 20
"""Healthy ones, whose noise sets the limits."""
_EXACT_UNIT = 5e-4
"""The noise of fp32, at most: below it there are no limits."""
_ROUNDED_UNIT, _LEAST_ROUNDED_UNIT = 0.05, 0.01
"""The noise of bf16: assumed before the first batch, and assumed at least after it."""
_LARGEST_UNIT = 0.1
_ABOVE_NOISE = 0.15
"""Nats: a spread that is farther above twice the noise is not noise, however large that is."""
_BEYOND_DOUBT = 4.0
_LEAST_UNCERTAINTY = 0.02
"""The uncertainty of a token whose probability is 1: 1 - p is not less than this."""
_INFORMATIVE = 0.05
"""Tokens with a larger 1 - p show more than those that are certain anyway."""
_FEW_OUTLIERS, _OUTLIER_SHARE = 3, 0.02


@dataclass(frozen=True, slots=True)
class CheckedSequence:
    """The trained tokens of one sequence, or the first of them."""

    stated: Sequence[float]
    expected: Sequence[LogprobBounds]
    """Under the weights that sampled it."""
    certain: bool = True
    """Which weights sampled it is known; False: the closest ones are assumed."""


@dataclass(frozen=True, slots=True)
class LogprobSpread:
    """How far the stated logprobs of some tokens are from the expected ones, in units of logits."""

    tokens: int
    spread: float
    bias: float
    differences: tuple[float, ...]
    """Absolute values."""

    @classmethod
    def of(cls, checked: Sequence[CheckedSequence]) -> LogprobSpread:
        pairs = [
            _difference(stated, bounds)
            for sequence in checked
            for stated, bounds in zip(sequence.stated, sequence.expected, strict=True)
        ]
        informative = [value for value, uncertainty in pairs if uncertainty > _INFORMATIVE]
        values = informative if len(informative) >= _ENOUGH_OF_A_SEQUENCE else [value for value, _ in pairs]
        if not values:
            return cls(0, 0.0, 0.0, ())
        return cls(
            len(values),
            statistics.median(map(abs, values)),
            abs(statistics.median(values)),
            tuple(abs(value) for value, _ in pairs),
        )

    def percentile_90(self) -> float:
        return _percentile_90(self.differences)


@dataclass(frozen=True, slots=True)
class NoiseLimits:
    """The gap that rounding explains."""

    unit: float

    @property
    def spread(self) -> float:
        return max(0.005, min(6 * self.unit, _ABOVE_NOISE + 2 * self.unit))

    def excess(self, measured: LogprobSpread) -> float:
        """How many times the measured values are above what rounding explains; up to 1: they are not."""
        if measured.tokens == 0:
            return 0.0
        bias_limit = max(0.004, 0.3 * self.unit, 8 * self.unit / math.sqrt(measured.tokens))
        excess = max(measured.spread / self.spread, measured.bias / bias_limit)
        limit = min(2.0, max(0.05, 40 * self.unit))
        outliers = sum(value > limit for value in measured.differences)
        most = max(_FEW_OUTLIERS - 1, _OUTLIER_SHARE * len(measured.differences))
        return max(excess, outliers / most if outliers > most else 0.0)


ROUNDED = NoiseLimits(0.025)
"""Between two engines of which one computes in bf16: vLLM differs from ours by 0.055 nats on an H200."""


def rounding_explains(measured: LogprobSpread) -> bool:
    """Whether the differences are as small as rounding makes them, and as often above 0 as below."""
    noise = NoiseLimits(max(ROUNDED.unit, measured.spread))
    return measured.spread <= ROUNDED.spread and noise.excess(measured) <= 1


@dataclass(frozen=True, slots=True)
class BatchVerdict:
    measured: LogprobSpread
    limit: float
    """The limit of the spread."""
    wrong: bool
    ends_run: bool


@dataclass(slots=True)
class LogprobProof:
    """Judges the checked sequences of one batch after the other."""

    start_unit: float
    """The noise between trainer and sampler before any update."""
    exact: bool = True
    """The service computes in fp32: a probe that agrees does not show that sampling does."""
    _first: list[float] = field(default_factory=list)
    """The noise of the first healthy batches."""
    _last: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST_BATCHES))
    _rounding_accepted: bool = False
    _strikes: deque[bool] = field(default_factory=lambda: deque(maxlen=_JUDGED_BATCHES))
    _recent: deque[CheckedSequence] = field(default_factory=lambda: deque(maxlen=4 * ENOUGH_TOKENS))
    """Sequences of batches with too few tokens to judge each batch."""

    @property
    def limits(self) -> NoiseLimits:
        exact = self.exact and self.start_unit < _EXACT_UNIT
        least = ROUNDED.unit if self._rounding_accepted else 0.0
        if not self._last:
            assumed = _EXACT_UNIT if exact else max(self.start_unit, _ROUNDED_UNIT)
            return NoiseLimits(_clamped(max(assumed, least)))
        floor = _EXACT_UNIT if exact else _LEAST_ROUNDED_UNIT
        return NoiseLimits(_clamped(max(*self._first, statistics.median(self._last), floor, least)))

    def accept_rounding(self, spread: float) -> None:
        """From now on batches that differ by what two engines round are healthy; `spread`: of the last."""
        self._rounding_accepted = True
        self._strikes.clear()
        self._last.clear()
        self._last.append(spread)

    def judge(self, checked: Sequence[CheckedSequence]) -> BatchVerdict | None:
        """None: there are too few tokens to judge, also with those of the batches before."""
        self._recent.extend(checked)
        measured = LogprobSpread.of(checked)
        if len(measured.differences) < ENOUGH_TOKENS:
            measured = LogprobSpread.of(self._recent)
            if len(measured.differences) < ENOUGH_TOKENS:
                return None
        else:
            self._recent.clear()
        limits = self.limits
        by_sequence = [
            limits.excess(single)
            for single in (LogprobSpread.of([sequence]) for sequence in checked)
            if single.tokens >= _ENOUGH_OF_A_SEQUENCE
        ]
        # A sequence alone has few tokens: only what is far beyond the limits counts.
        excess = max(limits.excess(measured), *(value / 3 for value in by_sequence), 0.0)
        wrong = excess > 1
        self._strikes.append(wrong)
        if not wrong:
            self._last.append(measured.spread)
            if len(self._first) < _FIRST_BATCHES:
                self._first.append(measured.spread)
        certain = all(sequence.certain for sequence in checked)
        ends = sum(self._strikes) >= _STRIKES or (certain and excess > _BEYOND_DOUBT)
        return BatchVerdict(measured, limits.spread, wrong, wrong and ends)


def farthest_difference(stated: Sequence[float], expected: Sequence[float]) -> float:
    """The 90th percentile of the differences over 1 - p: how far a sequence is from known logprobs."""
    return _percentile_90(
        [
            abs(value - logprob) / _uncertainty(value, logprob)
            for value, logprob in zip(stated, expected, strict=True)
        ]
    )


def _percentile_90(values: Sequence[float]) -> float:
    return sorted(values)[int(0.9 * (len(values) - 1))] if values else 0.0


def _difference(stated: float, expected: LogprobBounds) -> tuple[float, float]:
    """The difference over 1 - p, and 1 - p."""
    nearest = min(max(stated, expected.low), expected.high)
    uncertainty = _uncertainty(stated, expected.middle)
    return (stated - nearest) / uncertainty, uncertainty


def _uncertainty(stated: float, expected: float) -> float:
    return max(_LEAST_UNCERTAINTY, -math.expm1(min(stated, expected, 0.0)))


def _clamped(unit: float) -> float:
    return min(unit, _LARGEST_UNIT)
