"""From scored rollouts to the group that is sent to a trainer or written to a file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from hermes.core.sequence import SAMPLING_FIELDS, RolloutInfo, TrainSequence, to_group
from hermes.envs.failures import GroupDroppedError
from hermes.envs.rewards.result import TRUE_REWARD, GraderError
from hermes.envs.types import Message, ScoredDataGroup

_EMPTY = TrainSequence((), (), ())

if TYPE_CHECKING:
    from hermes.envs.agent.config import HermesAgentEnvConfig
    from hermes.envs.agent.rollout import ScoredRollout


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
        dropped_tokens=result.exactness.dropped_tokens,
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
