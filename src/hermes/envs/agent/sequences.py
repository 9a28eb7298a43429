"""Builds training sequences from the recorded model calls of a rollout. Pure functions over token ids.

A call whose prompt continues exactly where an earlier one ended (its prompt, then the sampled tokens) extends
that sequence; any other call starts a new one. Every sampled token is therefore trained on once, in the
context in which it was sampled.

If a call of the rollout has no exact tokens, there are no sequences but the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hermes.core import ModelCall, TokenTrace

MASKED = -100
"""The mask of a token that is not trained on."""
MASKED_LOGPROB = 1.0
"""The logprob of a masked token; real ones are at most 0."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One context as it grew. `tokens`, `masks` and `logprobs` have equal length."""

    tokens: tuple[int, ...]
    masks: tuple[int, ...]
    """The token's id where it was sampled, MASKED elsewhere."""
    logprobs: tuple[float, ...]
    """Under the weights that sampled it; MASKED_LOGPROB elsewhere."""
    calls: tuple[int, ...]
    """Indexes of the model calls it is made of."""
    policy_versions: tuple[str | None, ...]
    """The weights that sampled each of those calls."""

    @property
    def sampled_tokens(self) -> int:
        return sum(mask != MASKED for mask in self.masks)


@dataclass(frozen=True, slots=True)
class Exactness:
    """The training sequences of a rollout, or why there are none."""

    sequences: tuple[TrainingSequence, ...]
    inexact: str | None = None
    """Why there is nothing to train on; None if the sequences are exact and complete."""

    @property
    def trainable(self) -> bool:
        return self.inexact is None


def build_sequences(calls: Iterable[ModelCall]) -> Exactness:
    """The training sequences of a rollout's calls, in order."""
    builders: list[_SequenceBuilder] = []
    count = 0
    for index, call in enumerate(calls):
        count += 1
        if call.tokens is None:
            return Exactness((), _inexact_reason(index, call))
        _add_call(builders, index, call.tokens)
    if not any(builder.sampled for builder in builders):
        return Exactness((), "the model sampled nothing" if count else "the model was never called")
    return Exactness(tuple(builder.build() for builder in builders if builder.sampled))


class _SequenceBuilder:
    """A sequence to which calls are added."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.masks: list[int] = []
        self.logprobs: list[float] = []
        self.calls: list[int] = []
        self.policy_versions: list[str | None] = []
        self.sampled = 0

    def is_prefix_of(self, prompt_ids: Sequence[int]) -> bool:
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

    def build(self) -> TrainingSequence:
        return TrainingSequence(
            tuple(self.tokens),
            tuple(self.masks),
            tuple(self.logprobs),
            tuple(self.calls),
            tuple(self.policy_versions),
        )


def _add_call(builders: list[_SequenceBuilder], index: int, trace: TokenTrace) -> None:
    """Adds the call to the longest sequence that its prompt continues, or to a new one."""
    prefixes = [builder for builder in builders if builder.is_prefix_of(trace.prompt_ids)]
    if prefixes:
        longest = max(prefixes, key=lambda builder: len(builder.tokens))
    else:
        builders.append(longest := _SequenceBuilder())
    longest.add(index, trace)


def _inexact_reason(index: int, call: ModelCall) -> str:
    if call.tokens_withheld is not None:
        return f"the tokens of model call {index + 1} were withheld: {call.tokens_withheld}"
    return f"{call.model} at {call.endpoint} gave no token ids and logprobs for model call {index + 1}"
