"""Scores a sample of every batch with the weights that sampled it, and compares the stated logprobs.

Published weights are kept for a while, and a rollout names those that sampled it. Two sequences of a batch
are those whose logprobs are farthest from the trainer's present ones; two more are chosen by chance. The
first find a fault that few sequences have, the others one that the present weights hide.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from hermes.core.sequence import TrainSequence
from hermes.training.data.sampling_distribution import LogprobBounds, needs_top_tokens, sampling_bounds
from hermes.training.monitor.logprob_cause import OTHER_PRECISION, ScoredSequence, name_cause
from hermes.training.monitor.logprob_proof import LogprobProof, LogprobSpread, farthest_difference
from hermes.training.service.client import TokenScores

TOP_TOKENS = 256
"""Tokens that are looked at in a position, where the temperature is not 1."""
_FARTHEST, _BY_CHANCE = 2, 2
_CANDIDATES = 4
"""Newest weights that are tried for a sequence that does not state its own."""


class SequenceScorer(Protocol):
    def begin_score(
        self, weights: str, sequences: Sequence[Sequence[int]], tails: Sequence[int] | None = None
    ) -> Callable[[], list[list[float]]]: ...
    def score_top(self, weights: str, sequences: Sequence[Sequence[int]], most: int) -> list[TokenScores]: ...


class BatchAudit:
    def __init__(
        self,
        scorer: SequenceScorer,
        published: Callable[[], Sequence[str]],
        base_model: str,
        start_unit: float,
        seed: int,
        *,
        exact: bool,
        ends_run: bool = True,
    ) -> None:
        """`published`: the paths of the weights that can still be sampled, oldest first. `start_unit` and
        `exact`: see `LogprobProof`. `ends_run`: a fault is an error, not a warning."""
        self._scorer = scorer
        self._published = published
        self._base_model = base_model
        self._proof = LogprobProof(start_unit, exact)
        self._seed = seed
        self._ends_run = ends_run

    def check(
        self, sequences: Sequence[TrainSequence], trainer: Sequence[Sequence[float]], step: int
    ) -> dict[str, float]:
        """`trainer`: the logprobs under the weights before the update, which had made `step` steps.

        ProofError ends the run. Another precision does not: importance weights correct it.
        """
        chosen = self._choose(sequences, trainer, step)
        # The scorer takes all at once. It computes the farthest whole, so that a fault of its prefix cache
        # shows; for those by chance it may take from there what comes before the sampled tokens.
        pending = [
            self._begin_score(sequences[index], whole=rank < _FARTHEST) for rank, index in enumerate(chosen)
        ]
        scored = [entry for wait in pending if wait is not None and (entry := wait()) is not None]
        checked = [entry.checked() for entry in scored]
        metrics = {"proof/unchecked": float(len(chosen) - len(scored))}
        verdict = self._proof.judge([entry for entry in checked if entry.stated])
        if verdict is None:
            return metrics
        if verdict.ends_run:
            worst = max(scored, key=lambda entry: LogprobSpread.of([entry.checked()]).spread)
            row = next(
                row for row, sequence in zip(trainer, sequences, strict=True) if sequence is worst.sequence
            )
            present = ScoredSequence(worst.sequence, [LogprobBounds(value, value) for value in row], (), True)
            error = name_cause(
                worst, self._under_other_weights(worst), present, self._with_top(worst), verdict
            )
            if self._ends_run and error.cause != OTHER_PRECISION:
                raise error
            metrics |= error.warn()
            if error.cause == OTHER_PRECISION:
                self._proof.accept_rounding(verdict.measured.spread)
        measured = verdict.measured
        return metrics | {
            "proof/gap": measured.spread,
            "proof/gap_p90": measured.percentile_90(),
            "proof/bias": measured.bias,
            "proof/limit": verdict.limit,
            "proof/tokens": float(measured.tokens),
            "proof/strike": float(verdict.wrong),
        }

    def _choose(
        self, sequences: Sequence[TrainSequence], trainer: Sequence[Sequence[float]], step: int
    ) -> list[int]:
        """Indices of sequences."""

        def distance(index: int) -> float:
            sequence = sequences[index]
            stated, expected = (sequence.trained_only(row) for row in (sequence.logprobs, trainer[index]))
            return farthest_difference(stated, expected)

        order = sorted(range(len(sequences)), key=distance, reverse=True)
        farthest, remaining = order[:_FARTHEST], order[_FARTHEST:]
        random.Random(f"{self._seed}:{step}").shuffle(remaining)
        return [*farthest, *remaining[:_BY_CHANCE]]

    def _begin_score(
        self, sequence: TrainSequence, *, whole: bool
    ) -> Callable[[], ScoredSequence | None] | None:
        """The function that is returned waits for the scores. None: the weights that sampled it are no longer
        there, or its distribution is not known."""
        if sequence.reshaped:
            return None
        published = list(self._published())
        paths = [path for version in sequence.policy_versions if (path := _find(version, published))]
        if len(paths) == len(sequence.policy_versions) and paths:
            rows = [self._begin_bounds(sequence, path, whole=whole) for path in dict.fromkeys(paths)]
            return lambda: ScoredSequence(
                sequence, _nearest(sequence, [wait() for wait in rows]), tuple(paths), certain=True
            )
        if sequence.policy_steps:
            return None
        newest = published[-_CANDIDATES:][::-1]
        candidates = [(path, self._begin_bounds(sequence, path, whole=whole)) for path in newest]

        def nearest() -> ScoredSequence | None:
            scored = [ScoredSequence(sequence, wait(), (path,), certain=False) for path, wait in candidates]
            return min(scored, key=lambda entry: LogprobSpread.of([entry.checked()]).spread, default=None)

        return nearest

    def _bounds(self, sequence: TrainSequence, path: str) -> list[LogprobBounds | None]:
        return self._begin_bounds(sequence, path, whole=True)()

    def _begin_bounds(
        self, sequence: TrainSequence, path: str, *, whole: bool
    ) -> Callable[[], list[LogprobBounds | None]]:
        if not needs_top_tokens(sequence):
            tails = None if whole else [sequence.trained_tail]
            scores = self._scorer.begin_score(path, [sequence.tokens], tails)
            return lambda: [LogprobBounds(value, value) for value in scores()[0]]

        def top() -> list[LogprobBounds | None]:
            scores = self._scorer.score_top(path, [sequence.tokens], TOP_TOKENS)[0]
            return [
                sampling_bounds(logprob, top, sequence)
                for logprob, top in zip(scores.logprobs, scores.top, strict=True)
            ]

        return top

    def _with_top(self, scored: ScoredSequence) -> TokenScores:
        return self._scorer.score_top(scored.paths[-1], [scored.sequence.tokens], TOP_TOKENS)[0]

    def _under_other_weights(self, scored: ScoredSequence) -> dict[str, ScoredSequence]:
        paths = [path for path in (*self._published(), self._base_model) if path not in scored.paths]
        return {
            path: ScoredSequence(scored.sequence, self._bounds(scored.sequence, path), (path,), certain=False)
            for path in paths
        }


def _find(version: str, published: Sequence[str]) -> str | None:
    """The path of the weights with this version: the path itself, with or without the time it was written at,
    else a name with the same step."""
    path = version.partition("@")[0]
    if path in published:
        return path
    name = path.rpartition("/")[2]
    return next((path for path in reversed(published) if path.rpartition("/")[2] == name), None)


def _nearest(
    sequence: TrainSequence, rows: Sequence[Sequence[LogprobBounds | None]]
) -> list[LogprobBounds | None]:
    """For each token the closest bounds: which of several weights sampled it is not known."""

    def distance(bounds: LogprobBounds | None, stated: float) -> float:
        return float("inf") if bounds is None else abs(stated - bounds.middle)

    return [
        min(column, key=lambda bounds: distance(bounds, stated))
        for stated, *column in zip(sequence.logprobs, *rows, strict=True)
    ]
