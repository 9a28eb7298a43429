"""Proof of training: whether what was trained is what is sampled, and whether anything was trained at all.

A fixed sequence, the probe, is scored by the trainer and by the published sampler after every update. The
mean absolute difference is the metric `probe/gap`. Three causes end a run, each named, within three steps:

- stale adapter: the trainer's weights moved and the sampler's did not;
- no-op optimizer: gradients were not zero, and the trainer's weights did not move;
- wrong mask: fresh sequences whose stated logprobs are not those of the tokens they train.

What counts as moving is measured, not assumed: the noise is what the probe shows without any update.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hermes.errors import HermesError

PROBE_TOKENS = 128
"""A longer sequence is cut to this."""
_STRIKES = 2
"""Suspicious steps in a row that end the run."""
_FLOOR = 1e-9
_STILL = 0.1
"""A sampler that moved by less than this share of the trainer's movement did not follow it."""
_WRONG_GAP = 0.5
"""Nats; sampler and trainer on the same weights differ by hundredths at most."""
_ENOUGH_TOKENS = 16
_MOST_USUAL_GAP = 0.05
"""Nats; a sampler that is off by more from the start gets no leave for it."""


class ProofError(HermesError):
    """The run is not training what it says it trains."""

    def __init__(self, cause: str, message: str, hint: str) -> None:
        super().__init__(f"{cause}: {message}", hint)
        self.cause = cause


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
    """Judges one reading after the other."""

    noise: float
    """What two readings by the trainer differ by, with the same weights."""
    last: Reading
    usual_gap: float = 0.0
    """Between trainer and sampler, before any update."""
    _stale: int = 0
    _still: int = 0
    _wrong: int = 0

    def judge(self, new: Reading, *, pushed: bool) -> dict[str, float]:
        """After an update; `pushed`: it had gradients and a learning rate. ProofError ends the run."""
        moved = _distance(new.trainer, self.last.trainer)
        followed = _distance(new.sampler, self.last.sampler)
        least = max(_FLOOR, 2 * self.noise)
        self._still = self._still + 1 if pushed and moved <= least else 0
        behind = (
            moved > least and followed < _STILL * moved and new.gap > max(2 * self.usual_gap, 0.5 * moved)
        )
        self._stale = self._stale + 1 if behind else 0
        self.last = new
        if self._stale >= _STRIKES:
            raise ProofError(
                "stale adapter",
                f"the trainer's weights moved by {moved:.2g} nats on the probe and the sampler's by "
                f"{followed:.2g}, {_STRIKES} steps in a row (gap {new.gap:.2g})",
                "the sampler serves old weights: check what serves the policy, and restart it",
            )
        if self._still >= _STRIKES:
            raise ProofError(
                "no-op optimizer",
                f"{_STRIKES} updates with gradients left the probe where it was (moved by {moved:.2g} nats)",
                "the engine does not apply updates, or the learning rate is far too small",
            )
        return {"probe/gap": new.gap, "probe/moved": moved}

    def judge_batch(self, sampler: Sequence[float], trainer: Sequence[float], *, certain: bool) -> None:
        """Trained tokens of the trainer's present weights, before the update.

        `certain`: it is known that these weights sampled them; then one batch is enough.
        """
        if len(sampler) < _ENOUGH_TOKENS:
            return
        gap = _distance(sampler, trainer)
        strikes = _STRIKES if certain else 1
        self._wrong = self._wrong + strikes if gap > max(_WRONG_GAP, 10 * self.usual_gap) else 0
        if self._wrong >= _STRIKES:
            raise ProofError(
                "wrong mask",
                f"the logprobs that the environment states differ by {gap:.2g} nats on average from those of "
                "the tokens it marks as sampled, with the very weights that sampled them",
                "mask and logprobs are shifted or shuffled, or other weights sampled them",
            )


def begin(first: Reading, again: Sequence[float]) -> Proof:
    """`again`: the trainer's logprobs once more, with the same weights."""
    return Proof(_distance(first.trainer, again), first, min(first.gap, _MOST_USUAL_GAP))


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.fmean(abs(a - b) for a, b in zip(one, other, strict=True)) if one else 0.0
