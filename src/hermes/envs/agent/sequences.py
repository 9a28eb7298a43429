"""From the recorded calls of a rollout to what a trainer can learn from.

A call whose prompt goes on exactly where an earlier one ended (its prompt, then what was sampled) extends
that sequence; any other begins a new one. So every sampled token is trained on once, in the context in which
it was sampled, and on no context that the model never saw. Pure functions over recorded ids.

A rollout of which some call has no exact tokens gives no sequences, and the reason instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hermes.core import ModelCall, TokenTrace

MASKED = -100
"""The mask of a token that is not trained on."""
MASKED_LOGPROB = 1.0
"""What stands for the logprob of such a token; no real one is above 0."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One context as it grew. The three lists are of equal length."""

    tokens: tuple[int, ...]
    masks: tuple[int, ...]
    """The token's own id where it was sampled, MASKED elsewhere."""
    logprobs: tuple[float, ...]
    """Under the weights that sampled it; MASKED_LOGPROB elsewhere."""
    calls: tuple[int, ...]
    """Which of the rollout's model calls are in it, counted from 0."""
    policy_versions: tuple[str | None, ...]
    """The weights that answered each of those calls."""

    @property
    def sampled_tokens(self) -> int:
        return sum(mask != MASKED for mask in self.masks)


@dataclass(frozen=True, slots=True)
class Exactness:
    """What a rollout offers a trainer."""

    sequences: tuple[TrainingSequence, ...]
    inexact: str | None = None
    """Why there is nothing to train on; None if the sequences are exact and complete."""

    @property
    def trainable(self) -> bool:
        return self.inexact is None


def sequences_of(calls: Iterable[ModelCall]) -> Exactness:
    """The training sequences of a rollout's calls, in order."""
    grown: list[_Growing] = []
    count = 0
    for index, call in enumerate(calls):
        count += 1
        if call.tokens is None:
            return Exactness((), _why_not(index, call))
        _grow(grown, index, call.tokens)
    if not any(each.sampled for each in grown):
        return Exactness((), "the model sampled nothing" if count else "the model was never called")
    return Exactness(tuple(each.finished() for each in grown if each.sampled))


class _Growing:
    """A sequence in the making."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.masks: list[int] = []
        self.logprobs: list[float] = []
        self.calls: list[int] = []
        self.policy_versions: list[str | None] = []
        self.sampled = 0

    def takes(self, prompt_ids: Sequence[int]) -> bool:
        size = len(self.tokens)
        return size <= len(prompt_ids) and list(prompt_ids[:size]) == self.tokens

    def add(self, index: int, trace: TokenTrace) -> None:
        new = trace.prompt_ids[len(self.tokens) :]
        self.tokens += (*new, *trace.sampled_ids)
        self.masks += (*[MASKED] * len(new), *trace.sampled_ids)
        self.logprobs += (*[MASKED_LOGPROB] * len(new), *trace.logprobs)
        self.calls.append(index)
        self.policy_versions.append(trace.policy_version)
        self.sampled += len(trace.sampled_ids)

    def finished(self) -> TrainingSequence:
        return TrainingSequence(
            tuple(self.tokens),
            tuple(self.masks),
            tuple(self.logprobs),
            tuple(self.calls),
            tuple(self.policy_versions),
        )


def _grow(grown: list[_Growing], index: int, trace: TokenTrace) -> None:
    """Adds the call to the longest sequence it goes on from, or to a new one."""
    fitting = [each for each in grown if each.takes(trace.prompt_ids)]
    if fitting:
        best = max(fitting, key=lambda each: len(each.tokens))
    else:
        grown.append(best := _Growing())
    best.add(index, trace)


def _why_not(index: int, call: ModelCall) -> str:
    if call.tokens_withheld is not None:
        return f"the tokens of model call {index + 1} were withheld: {call.tokens_withheld}"
    return f"{call.model} at {call.endpoint} gave no token ids and logprobs for model call {index + 1}"
