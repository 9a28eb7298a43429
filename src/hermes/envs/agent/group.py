"""From scored rollouts to the group that a trainer or a file gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes.envs.agent.sequences import TrainingSequence
from hermes.envs.failures import GroupDroppedError
from hermes.envs.rewards.result import GraderError
from hermes.envs.types import ScoredDataGroup

_NOTHING = TrainingSequence((), (), (), (), ())

if TYPE_CHECKING:
    from hermes.envs.agent.config import HermesAgentEnvConfig
    from hermes.envs.agent.rollout import Scored


def as_group(
    scored: Sequence[Scored], config: HermesAgentEnvConfig, kind: str | None = None
) -> ScoredDataGroup:
    """Every exact context of every rollout, with its rollout's score. `kind`: of the task.

    A rollout whose template rewrote the history has several; `overrides` says which belong together. One
    without exact tokens has an empty sequence and says why: there is nothing in it to train on.
    """
    tokens: list[list[int]] = []
    masks: list[list[int]] = []
    logprobs: list[list[float]] = []
    scores: list[float] = []
    messages: list[list[Any]] = []
    overrides: list[dict[str, Any]] = []
    for each in scored:
        parts = each.result.sequences or (_NOTHING,)
        for number, part in enumerate(parts):
            tokens.append(list(part.tokens))
            masks.append(list(part.masks))
            logprobs.append(list(part.logprobs))
            scores.append(each.reward.value)
            messages.append(each.result.messages)
            overrides.append({**_facts(each, kind), **_place(part, number, len(parts))})
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


def _facts(scored: Scored, kind: str | None) -> dict[str, Any]:
    """What a trainer's health metrics ask of a rollout."""
    result = scored.result
    facts: dict[str, Any] = {
        "trajectory_id": result.trajectory.header.id,
        "stop_reason": result.outcome.stop_reason.value,
        "tool_calls": sum(len(step.message.tool_calls) for step in result.trajectory.steps),
        "tool_errors": len(result.tool_errors),
        "success": scored.reward.success,
    }
    if kind is not None:
        facts["kind"] = kind
    if result.exactness.inexact is not None:
        facts["not_trainable"] = result.exactness.inexact
    return facts


def _place(part: TrainingSequence, number: int, parts: int) -> dict[str, Any]:
    versions = sorted({version for version in part.policy_versions if version is not None})
    place: dict[str, Any] = {"policy_versions": versions} if versions else {}
    return place | ({"part": number, "parts": parts} if parts > 1 else {})


def of_group(error: BaseException) -> BaseException:
    """Why the whole group failed: infrastructure as it is, a grader's failure by name."""
    if isinstance(error, GraderError):
        return GroupDroppedError("grader", error.message)
    return error
