"""From the recorded model calls of a rollout to its training sequences. Pure.

A call whose prompt continues exactly where an earlier call ended (its prompt, then its sampled tokens)
extends the sequence of that call; any other call begins a new one. So every sampled token is trained on once,
in the context in which it was sampled, and no context is made up that the model never saw.

A rollout with a call without exact tokens has no sequences, and the reason instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from hermes.core import ModelCall, TokenTrace
from hermes.core.sequence import MASKED_LOGPROB, SAMPLING_FIELDS, RolloutInfo, TrainSequence, to_group
from hermes.envs.failures import GroupDroppedError
from hermes.envs.rewards.result import TRUE_REWARD, GraderError
from hermes.envs.types import Message, ScoredDataGroup

if TYPE_CHECKING:
    from hermes.envs.agent.config import HermesAgentEnvConfig
    from hermes.envs.agent.rollout import ScoredRollout


@dataclass(frozen=True, slots=True)
class Exactness:
    """The training sequences of a rollout, or why there are none."""

    sequences: tuple[TrainSequence, ...]
    inexact: str | None = None
    """Why there is nothing to train on; None if the sequences are exact and complete."""

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


_EMPTY = TrainSequence((), (), ())


def build_group(
    rollouts: Sequence[ScoredRollout], config: HermesAgentEnvConfig, kind: str | None = None
) -> ScoredDataGroup:
    """Every exact sequence of every rollout, with its rollout's score. `kind`: of the task.

    A rollout whose template rewrote the history has several; `overrides` names those that belong together. A
    rollout without exact tokens has an empty sequence and the reason: there is nothing in it to train on.
    """
    sequences = [
        (replace(sequence, rollout=_rollout_info(rollout, kind)), rollout.result.messages)
        for rollout in rollouts
        for sequence in rollout.result.sequences or (_EMPTY,)
    ]
    group = cast("ScoredDataGroup", to_group([sequence for sequence, _ in sequences]))
    group["generation_params"] = _generation_params(config)
    if config.include_messages:
        group["messages"] = cast("list[list[Message]]", [messages for _, messages in sequences])
    if len(sequences) != config.group_size:
        group["group_overrides"] = {"group_size": len(sequences)}
    return group


def _rollout_info(rollout: ScoredRollout, kind: str | None) -> RolloutInfo:
    result = rollout.result
    return RolloutInfo(
        id=result.trajectory.header.id,
        score=rollout.reward.value,
        success=rollout.reward.success,
        kind=kind,
        stop_reason=result.outcome.stop_reason.value,
        tool_calls=sum(len(step.message.tool_calls) for step in result.trajectory.steps),
        tool_errors=len(result.tool_errors),
        forbidden_paths=len(rollout.forbidden),
        not_trainable=result.exactness.inexact,
        true_reward=rollout.reward.parts.get(TRUE_REWARD),
        parts={name: value for name, value in rollout.reward.parts.items() if name != TRUE_REWARD},
    )


def _generation_params(config: HermesAgentEnvConfig) -> dict[str, Any]:
    """The distribution that the tokens were sampled from, which the trainer checks their logprobs against."""
    extra = config.extra_body or {}
    return {
        "temperature": config.agent_temperature,
        **{name: extra[name] for name in SAMPLING_FIELDS if extra.get(name) is not None},
    }


def group_error(error: BaseException) -> BaseException:
    """The error of the whole group: an infrastructure failure as it is, a grader's failure by name."""
    if isinstance(error, GraderError):
        return GroupDroppedError("grader", error.message)
    return error
