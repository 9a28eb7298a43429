"""Proof of training: whether the sampler has the trained weights, and whether updates change them at all.

A fixed sequence, the probe, is scored by the trainer and by the published sampler after every update. The
mean absolute difference is the metric `probe/gap`. Two causes end a run, each named, within three steps:

- stale adapter: the trainer's weights moved and the sampler's did not, or came one step late;
- no-op optimizer: gradients were not zero, and the trainer's weights did not move.

A strike is not forgotten because the next step is right: two of the last four end the run, so a fault of
every second step is named too. What the environments send is proved by `batch_audit`.

The threshold for movement is measured, not assumed: the noise is the difference of two readings without an
update. The gap itself proves nothing: in bf16 a healthy sampler, which merges the adapter, is 0.05 to 0.25
nats from the trainer. A stale one is recognised by the direction: its logprobs are those of the trainer
before the update. The share of the trainer's movement that the sampler has made is the metric
`probe/followed`: about 1 for a sampler that follows, 0 for one that serves the weights before. It is judged
once the trainer has moved by more than the noise, over as many steps as that takes.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes.errors import HermesError
from hermes.training.data.sampling_distribution import LogprobBounds
from hermes.training.monitor.logprob_proof import CheckedSequence, LogprobSpread

PROBE_TOKENS = 128
"""A longer sequence is cut to this."""
STRIKES, JUDGEMENTS = 2, 4
"""Suspicious steps among the last judgements that end the run."""
_FLOOR = 1e-9
FOLLOWED = 0.4
"""A sampler that made less than this share of the trainer's movement serves older weights."""
_CLEARLY_STALE = 0.2
"""One that made less than this is certainly not the new one."""
OVERTAKEN = 1.8
"""One that made more than this share has the adapter at another scale."""
_CLEAR = 3.0
"""The sampler is judged once the trainer has moved by this many times the noise between the two. With 1.5, a
healthy run in bf16 on an H200 was called stale; with 3, none of 720 simulated healthy runs was."""
_CERTAIN = math.log(0.98)
"""A likelier token counts as if it had this logprob."""
_MERGE_NOISE = 0.05
"""The noise of a sampler that merges the adapter into bf16 weights. An untrained adapter merges without
rounding, so the first reading does not show it: without this a healthy reward model on an H200 was called
stale (moved by 0.093 nats, gap 0.051)."""
_MOST_NOISE = 0.3
"""Nats; more noise than this is not tolerated, even if it is there from the start."""
_FOREIGN_SPREAD = 0.5
"""In units of logits: more than rounding makes of the same weights in any dtype."""


GO_ON = "hermes rl resume RUN --set proof=warn (hermes train: --proof warn)"
"""How a user continues a run that the proof has ended by mistake."""
_logger = logging.getLogger(__name__)


class ProofError(HermesError):
    """The run does not train the policy that is sampled."""

    def __init__(self, cause: str, message: str, hint: str) -> None:
        super().__init__(f"{cause}: {message}", f"{hint}; to go on all the same: {GO_ON}")
        self.cause = cause

    def warn(self) -> dict[str, float]:
        """Reports the cause without ending the run; the metrics of the step."""
        _logger.warning("%s", self.message)
        return {"proof/warning": 1.0}


@dataclass(frozen=True, slots=True)
class Reading:
    """The probe's logprobs under one set of weights."""

    trainer: Sequence[float]
    sampler: Sequence[float]

    @property
    def gap(self) -> float:
        return _distance(self.trainer, self.sampler)


@dataclass(slots=True)
class Proof:
    """Compares the readings of a run, one after each update."""

    noise: float
    """The difference of two readings by the trainer with the same weights."""
    first: Reading
    """Before any update, when trainer and sampler differ only by their arithmetic."""
    least_noise: float = 0.0
    """In units of logits: what merging a trained adapter may add to the noise of the first reading."""
    _last: Reading = field(init=False)
    _anchor: Reading = field(init=False)
    """The reading that movement is measured from: that of the last judgement."""
    _since_anchor: int = 0
    _behind: deque[bool] = field(default_factory=lambda: deque(maxlen=JUDGEMENTS))
    """Whether the sampler had not followed, for the last judgements."""
    _unmoved: deque[bool] = field(default_factory=lambda: deque(maxlen=JUDGEMENTS))
    """Whether the trainer had not moved, for the last updates with gradients."""

    def __post_init__(self) -> None:
        self._last = self._anchor = self.first

    def judge(self, new: Reading, *, pushed: bool) -> dict[str, float]:
        """After an update; `pushed`: it had gradients and a learning rate. ProofError ends the run."""
        moved = _distance(new.trainer, self._last.trainer)
        least = max(_FLOOR, 2 * self.noise)
        if pushed:
            self._unmoved.append(moved <= least)
        self._last = new
        self._since_anchor += 1
        values = {"probe/gap": new.gap, "probe/moved": moved}
        if moved > least and (followed := self._followed_share(new)) is not None:
            values["probe/followed"] = followed
            # A judgement over several steps covers more than one update; a doubtful one is still one.
            judgements = min(self._since_anchor, STRIKES) if followed <= _CLEARLY_STALE else 1
            self._behind.extend([not FOLLOWED <= followed <= OVERTAKEN] * judgements)
            self._anchor, self._since_anchor = new, 0
        if sum(self._behind) >= STRIKES:
            raise ProofError(
                "stale adapter",
                f"the trainer's weights moved by {moved:.2g} nats on the probe, and the sampler made "
                f"{values.get('probe/followed', 0.0):.0%} of that (gap {new.gap:.2g}); it lagged in "
                f"{sum(self._behind)} of {len(self._behind)} judgements",
                "the sampler serves old weights: check what serves the policy, and restart it",
            )
        if sum(self._unmoved) >= STRIKES:
            raise ProofError(
                "no-op optimizer",
                f"{sum(self._unmoved)} of {len(self._unmoved)} updates with gradients left the probe where "
                f"it was (moved by {moved:.2g} nats)",
                "the engine does not apply updates, or the learning rate is far too small",
            )
        return values

    def _followed_share(self, new: Reading) -> float | None:
        """The share of the trainer's movement since the anchor that the sampler has made. None: the trainer
        has not moved clearly enough."""
        uncertainty = [-math.expm1(min(value, _CERTAIN)) for value in self._anchor.trainer]
        offset = _difference(self.first.sampler, self.first.trainer)
        movement = _difference(new.trainer, self._anchor.trainer)
        followed = _difference(_difference(new.sampler, offset), self._anchor.trainer)
        # Rounding and updates move logits: a logprob moves by 1 - p of that.
        offset, movement, followed = (
            [value / scale for value, scale in zip(values, uncertainty, strict=True)]
            for values in (offset, movement, followed)
        )
        if _size(movement) <= _CLEAR * min(max(_size(offset), self.least_noise), _MOST_NOISE):
            return None
        return _slope(movement, followed)

    @property
    def unit(self) -> float:
        """The noise between trainer and sampler before any update, in units of logits: it shows the dtype."""
        return _spread(self.first).spread


def begin_proof(first: Reading, repeated: Sequence[float], *, exact: bool = True) -> Proof:
    """`repeated`: the trainer's logprobs of the probe once more, with the same weights. `exact`: the service
    rounds nothing. ProofError if the sampler does not have the trainer's weights from the start."""
    measured = _spread(first)
    if measured.spread > _FOREIGN_SPREAD:
        raise ProofError(
            "stale adapter",
            f"before any update the sampler differs by {measured.spread:.2g} nats (median) from the trainer "
            f"on the {len(first.trainer)} tokens of the probe",
            "the sampler has other weights than were published: check what serves the policy, and restart it",
        )
    return Proof(_distance(first.trainer, repeated), first, 0.0 if exact else _MERGE_NOISE)


def _spread(reading: Reading) -> LogprobSpread:
    # Nothing predicts the first token.
    expected = [LogprobBounds(value, value) for value in reading.trainer[1:]]
    return LogprobSpread.of([CheckedSequence(reading.sampler[1:], expected)])


def _difference(left: Sequence[float], right: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(left, right, strict=True)]


def _size(values: Sequence[float]) -> float:
    """The median of the absolute values: a few outliers do not count."""
    return statistics.median(abs(value) for value in values) if values else 0.0


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of the line through the origin with the least absolute deviations: robust against outliers.

    It is the median of the ratios, each weighted by |x|.
    """
    ratios = sorted((b / a, abs(a)) for a, b in zip(x, y, strict=True) if a)
    half = sum(weight for _, weight in ratios) / 2
    for ratio, weight in ratios:
        half -= weight
        if half <= 0:
            return ratio
    return 0.0


def _distance(left: Sequence[float], right: Sequence[float]) -> float:
    return statistics.fmean(abs(a - b) for a, b in zip(left, right, strict=True)) if left else 0.0
