"""From the recorded model calls of a rollout to its training sequences. Pure.

A call whose prompt continues exactly where an earlier call ended (its prompt, then its sampled tokens)
extends the sequence of that call; any other call begins a new one. So every sampled token is trained on once,
in the context in which it was sampled, and no context is made up that the model never saw.

A rollout with a call without exact tokens has no sequences, and the reason instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hermes.core import ModelCall, TokenTrace
from hermes.core.sequence import MASKED_LOGPROB, TrainSequence


@dataclass(frozen=True, slots=True)
class Exactness:
    """The training sequences of a rollout, or why there are none."""

    sequences: tuple[TrainSequence, ...]
    inexact: str | None = None
    """Why there is nothing to train on; None if the sequences are exact and complete."""
    dropped_tokens: Mapping[str, int] = field(default_factory=dict)
    """Reason → sampled tokens that are in no sequence."""

    @property
    def trainable(self) -> bool:
        return self.inexact is None


def build_sequences(calls: Iterable[ModelCall]) -> Exactness:
    """The training sequences of a rollout's calls, in order."""
    contexts: list[_GrowingContext] = []
    count = 0
    for index, call in enumerate(calls):
        count += 1
        if call.tokens is None:
            return Exactness((), _missing_tokens(index, call))
        _add_call(contexts, index, call.tokens)
    sampled = [context for context in contexts if any(context.loss_mask)]
    if not sampled:
        return Exactness((), "the model sampled nothing" if count else "the model was never called")
    return Exactness(tuple(context.to_sequence() for context in sampled))


class _GrowingContext:
    """The context of a sequence of calls that continue one another."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.loss_mask: list[bool] = []
        self.logprobs: list[float] = []
        self.calls: list[int] = []
        self.policy_versions: list[str] = []

    def is_prefix_of(self, prompt_ids: Sequence[int]) -> bool:
        size = len(self.tokens)
        return size <= len(prompt_ids) and list(prompt_ids[:size]) == self.tokens

    def extend(self, index: int, trace: TokenTrace) -> None:
        new_ids = trace.prompt_ids[len(self.tokens) :]
        self.tokens += (*new_ids, *trace.sampled_ids)
        self.loss_mask += (*[False] * len(new_ids), *[True] * len(trace.sampled_ids))
        self.logprobs += (*[MASKED_LOGPROB] * len(new_ids), *trace.logprobs)
        self.calls.append(index)
        if trace.policy_version is not None:
            self.policy_versions.append(trace.policy_version)

    def to_sequence(self) -> TrainSequence:
        return TrainSequence(
            tuple(self.tokens),
            tuple(self.loss_mask),
            tuple(self.logprobs),
            tuple(self.policy_versions),
            tuple(self.calls),
        )


def _add_call(contexts: list[_GrowingContext], index: int, trace: TokenTrace) -> None:
    """Extends the longest context that the call continues, or begins a new one."""
    prefixes = [context for context in contexts if context.is_prefix_of(trace.prompt_ids)]
    if prefixes:
        longest = max(prefixes, key=lambda context: len(context.tokens))
    else:
        contexts.append(longest := _GrowingContext())
    longest.extend(index, trace)


def _missing_tokens(index: int, call: ModelCall) -> str:
    if call.tokens_withheld is not None:
        return f"the tokens of model call {index + 1} were withheld: {call.tokens_withheld}"
    return f"{call.model} at {call.endpoint} gave no token ids and logprobs for model call {index + 1}"
