"""Names why the logprobs of a sequence are not those of its tokens. Pure.

Each explanation predicts the stated logprobs from what the sampler gives: at another temperature, in the
neighbouring positions, times a factor, under other weights. One that predicts them is the cause. If none
does, and the differences are as small as bf16 makes them, the sampler computes less precisely than the
service. Otherwise the tokens are not those that were sampled.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hermes.core.sequence import TrainSequence
from hermes.training.data.sampling_distribution import LogprobBounds, sampling_bounds
from hermes.training.monitor.logprob_proof import (
    BatchVerdict,
    CheckedSequence,
    LogprobSpread,
    rounding_explains,
)
from hermes.training.monitor.proof import ProofError

if TYPE_CHECKING:
    from hermes.training.service.client import TokenScores

STALE, WRONG_MASK = "stale adapter", "wrong mask"
WRONG_TEMPERATURE, WRONG_LOGPROBS = "wrong temperature", "wrong logprobs"
OTHER_PRECISION = "other precision"
_TEMPERATURES = tuple(step / 20 for step in range(4, 41))
_SHIFTS = (-1, 1, -2, 2, -3, 3)
_MUCH_CLOSER = 0.03
"""An explanation leaves at most this share of the difference, or what rounding explains."""
_CLOSER = 2.0
"""An explanation divides the difference at least by this: one that fits no better than none is no cause."""
_WIDE = 0.1
"""Nats; an interval that is wider explains nothing."""


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """A sequence, and its logprobs by token under the weights that sampled it."""

    sequence: TrainSequence
    expected: Sequence[LogprobBounds | None]
    """None: unknown."""
    paths: tuple[str, ...]
    certain: bool

    def checked(self) -> CheckedSequence:
        """Its trained tokens."""
        pairs = [
            (stated, bounds)
            for stated, bounds, in_loss in zip(
                self.sequence.logprobs, self.expected, self.sequence.loss_mask, strict=True
            )
            if in_loss and bounds is not None
        ]
        return CheckedSequence([stated for stated, _ in pairs], [bounds for _, bounds in pairs], self.certain)


def name_cause(
    scored: ScoredSequence,
    alternatives: Mapping[str, ScoredSequence],
    present: ScoredSequence,
    scores: TokenScores,
    verdict: BatchVerdict,
) -> ProofError:
    """`alternatives`: the same sequence under other weights of the run. `present`: as the trainer has it, at
    temperature 1, as are `scores`."""
    spread = LogprobSpread.of([scored.checked()]).spread
    left = min(max(_MUCH_CLOSER * spread, verdict.limit), spread / _CLOSER)
    measured = verdict.measured
    evidence = (
        f"the logprobs that the environment states differ by {measured.spread:.2g} nats (median over "
        f"{measured.tokens} tokens, 90 % are below {measured.percentile_90():.2g}; rounding explains "
        f"{verdict.limit:.2g}) from those of the tokens it marks as sampled"
    )
    if scored.sequence.temperature == 1.0 and _explains(present, left):
        return ProofError(
            STALE,
            f"{evidence} as the sampler scores them; they are those of the trainer's weights",
            "the sampler has other weights than were published: check what serves the policy, and restart it",
        )
    for explain in (_other_temperature, _other_position, _factor):
        error = explain(scored, scores, left, evidence)
        if error is not None:
            return error
    for path, alternative in alternatives.items():
        if _explains(alternative, left):
            named, actual = (text.rpartition("/")[2] for text in (scored.paths[-1], path))
            return ProofError(
                STALE,
                f"{evidence} under {named}; they are those of {actual}",
                "the sampler has other weights than it names: check what serves the policy, and restart it",
            )
    if rounding_explains(measured):
        return ProofError(
            OTHER_PRECISION,
            f"{evidence}; that is what rounding to bf16 makes, and the engine computes more precisely",
            "serve the policy in the engine's dtype (vLLM and SGLang: --dtype float32), or start the engine "
            "in the server's",
        )
    return ProofError(
        WRONG_MASK,
        f"{evidence}, with the very weights that sampled them",
        "the mask or the logprobs are shifted or shuffled, the token ids are not the sampled ones (another "
        "tokenizer, a dropped BOS token), or other weights sampled the tokens",
    )


def _explains(scored: ScoredSequence, left: float) -> bool:
    """Whether it predicts most of the trained tokens narrowly, and all of these well."""
    narrow = [
        None if bounds is None or bounds.high - bounds.low > _WIDE else bounds for bounds in scored.expected
    ]
    checked = replace(scored, expected=narrow).checked()
    enough = len(checked.stated) >= max(3, scored.sequence.trained_tokens // 2)
    return enough and LogprobSpread.of([checked]).spread <= left


def _other_temperature(
    scored: ScoredSequence, scores: TokenScores, left: float, evidence: str
) -> ProofError | None:
    if not any(scores.top):
        return None
    sequence = scored.sequence
    closest = next(
        (
            temperature
            for temperature in _TEMPERATURES
            if temperature != sequence.temperature
            and _explains(replace(scored, expected=_at_temperature(sequence, temperature, scores)), left)
        ),
        None,
    )
    if closest is None:
        return None
    return ProofError(
        WRONG_TEMPERATURE,
        f"{evidence}; they are those at temperature {closest:g}, and the group says {sequence.temperature:g}",
        "send the sampling temperature as generation_params.temperature, and logprobs at that temperature "
        "(vLLM: --logprobs-mode processed_logprobs)",
    )


def _at_temperature(
    sequence: TrainSequence, temperature: float, scores: TokenScores
) -> list[LogprobBounds | None]:
    assumed = replace(sequence, temperature=temperature, top_p=1.0, top_k=-1)
    return [
        sampling_bounds(logprob, top, assumed)
        for logprob, top in zip(scores.logprobs, scores.top, strict=True)
    ]


def _other_position(
    scored: ScoredSequence, scores: TokenScores, left: float, evidence: str
) -> ProofError | None:
    unknown: list[LogprobBounds | None] = [None] * len(scored.expected)
    for shift in _SHIFTS:
        moved = (unknown[:shift] if shift > 0 else []) + list(scored.expected[max(0, -shift) :])
        moved = (moved + unknown)[: len(unknown)]
        if _explains(replace(scored, expected=moved), left):
            direction = "before" if shift > 0 else "after"
            return ProofError(
                WRONG_MASK,
                f"{evidence}; they are those of the tokens {abs(shift)} {direction} them",
                "shift the mask and the logprobs to the tokens that were sampled",
            )
    return None


def _factor(scored: ScoredSequence, scores: TokenScores, left: float, evidence: str) -> ProofError | None:
    checked = scored.checked()
    middles = [bounds.middle for bounds in checked.expected]
    ratios = [stated / value for stated, value in zip(checked.stated, middles, strict=True) if value < -0.05]
    offsets = [stated - value for stated, value in zip(checked.stated, middles, strict=True)]
    if not ratios:
        return None
    factor, offset = statistics.median(ratios), statistics.median(offsets)
    explanations = (
        ([value * factor for value in middles], f"{factor:.3g} times the right ones"),
        (
            [value + offset for value in middles],
            f"{offset:+.2g} nats off everywhere",
        ),
    )
    for values, description in explanations:
        predicted = [LogprobBounds(value, value) for value in values]
        if LogprobSpread.of([CheckedSequence(checked.stated, predicted)]).spread <= left:
            return ProofError(
                WRONG_LOGPROBS,
                f"{evidence}; they are {description}",
                "send natural logarithms of the probabilities, as the server of the policy returns them",
            )
    return None
