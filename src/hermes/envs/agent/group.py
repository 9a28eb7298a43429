"""Builds the group that is sent to a trainer or written to a file from scored rollouts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes.envs.agent.sequences import TrainingSequence
from hermes.envs.failures import GroupDroppedError
from hermes.envs.rewards.result import GraderError
from hermes.envs.types import ScoredDataGroup

_EMPTY = TrainingSequence((), (), (), (), ())

if TYPE_CHECKING:
    from hermes.envs.agent.config import HermesAgentEnvConfig
    from hermes.envs.agent.rollout import ScoredRollout


def build_group(
    rollouts: Sequence[ScoredRollout], config: HermesAgentEnvConfig, kind: str | None = None
) -> ScoredDataGroup:
    """Every exact sequence of every rollout, with its rollout's score. `kind`: of the task.

    A rollout whose template rewrote the history has several sequences; `overrides` identifies the parts of
    one rollout. A rollout without exact tokens has an empty sequence and the reason: nothing in it is trained
    on.
    """
    tokens: list[list[int]] = []
    masks: list[list[int]] = []
    logprobs: list[list[float]] = []
    scores: list[float] = []
    messages: list[list[Any]] = []
    overrides: list[dict[str, Any]] = []
    for rollout in rollouts:
        sequences = rollout.result.sequences or (_EMPTY,)
        for number, sequence in enumerate(sequences):
            tokens.append(list(sequence.tokens))
            masks.append(list(sequence.masks))
            logprobs.append(list(sequence.logprobs))
            scores.append(rollout.reward.value)
            messages.append(rollout.result.messages)
            overrides.append({**_facts(rollout, kind), **_part_facts(sequence, number, len(sequences))})
    group: ScoredDataGroup = {
        "tokens": tokens,
        "masks": masks,
        "scores": scores,
        "inference_logprobs": logprobs,
        "overrides": overrides,
        "generation_params": {"temperature": config.agent_temperature},
    }
    if config.include_messages:
        group["messages"] = messages
    if len(tokens) != config.group_size:
        group["group_overrides"] = {"group_size": len(tokens)}
    return group


def _facts(rollout: ScoredRollout, kind: str | None) -> dict[str, Any]:
    """What a trainer's health metrics use of a rollout."""
    result = rollout.result
    facts: dict[str, Any] = {
        "trajectory_id": result.trajectory.header.id,
        "stop_reason": result.outcome.stop_reason.value,
        "tool_calls": sum(len(step.message.tool_calls) for step in result.trajectory.steps),
        "tool_errors": len(result.tool_errors),
        "success": rollout.reward.success,
    }
    if kind is not None:
        facts["kind"] = kind
    if result.exactness.inexact is not None:
        facts["not_trainable"] = result.exactness.inexact
    return facts


def _part_facts(sequence: TrainingSequence, number: int, count: int) -> dict[str, Any]:
    versions = sorted({version for version in sequence.policy_versions if version is not None})
    facts: dict[str, Any] = {"policy_versions": versions} if versions else {}
    return facts | ({"part": number, "parts": count} if count > 1 else {})


def group_error(error: BaseException) -> BaseException:
    """The error of the whole group: an infrastructure failure as it is, a grader's failure by name."""
    if isinstance(error, GraderError):
        return GroupDroppedError("grader", error.message)
    return error
