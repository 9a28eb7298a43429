"""From the rollouts of a task to groups that a trainer takes. Pure.

Each agent of an environment has a group of its own: rewards of different roles are not comparable. A sequence
is one context in which tokens were sampled; a rollout whose history was rewritten has several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hermes.compat.verifiers.gateway import RolloutCalls, SessionCalls
from hermes.core import ModelCall, new_id
from hermes.core.sequence import RolloutInfo, TrainSequence, to_group
from hermes.envs.agent.sequences import build_sequences
from hermes.envs.failures import GroupDroppedError
from hermes.envs.types import Message, ScoredDataGroup
from hermes.errors import ContextOverflowError, HermesError, ProviderError, SandboxError, UsageError
from hermes.models.remote.wire import Dialect, message_to_wire

_SANDBOX_ERRORS = ("SandboxError", "TunnelError", "InterceptionError", "ToolsetError", "HarnessError")


@dataclass(frozen=True, slots=True)
class AgentRollout:
    """What one agent did in one rollout, and what that was worth."""

    agent: str
    trainable: bool
    score: float
    parts: Mapping[str, float]
    stop: str | None
    calls: tuple[ModelCall, ...]
    messages: tuple[dict[str, Any], ...]


def read_rollout(result: Mapping[str, Any], calls: RolloutCalls) -> list[AgentRollout]:
    """The agents of a rollout that ended with a score; raises if it failed.

    The failure is the model server's, the sandbox's, or the environment's, so that groups are retried or
    dropped for the right reason. None of them is a score.
    """
    if errors := [*result["errors"], *(error for trace in result["traces"] for error in trace["errors"])]:
        raise _failure(errors, calls)
    rollouts = [_agent_rollout(trace, calls) for trace in result["traces"]]
    if not rollouts:
        raise GroupDroppedError("environment", "a rollout ended without any agent having run")
    return rollouts


def _agent_rollout(trace: Mapping[str, Any], calls: RolloutCalls) -> AgentRollout:
    if trace["score"] is None:
        if trace["timed_out"]:
            raise GroupDroppedError("timeout", "a rollout reached a time limit of its environment")
        if calls.failure is not None:
            raise model_failure(calls.failure)
        raise GroupDroppedError("grader", "a rollout ended without a reward")
    session = calls.sessions.get(trace["session"])
    return AgentRollout(
        agent=trace["agent"],
        trainable=trace["trainable"],
        score=float(trace["score"]),
        parts=trace["parts"],
        stop=trace["stop"],
        calls=tuple(session.calls) if session else (),
        messages=_messages(session) if session else (),
    )


def _messages(session: SessionCalls) -> tuple[dict[str, Any], ...]:
    return tuple(message_to_wire(message, Dialect(send_reasoning=True)) for message in session.messages)


def _failure(errors: Sequence[Mapping[str, str]], calls: RolloutCalls) -> HermesError:
    if calls.failure is not None:
        return model_failure(calls.failure)
    last = errors[-1]
    text = f"{last['type']}: {last['message']}"
    if last["type"] == "ProviderError":
        return ProviderError(text, retryable=True)
    if last["type"] in _SANDBOX_ERRORS:
        return SandboxError(text)
    return GroupDroppedError("environment", text)


def model_failure(error: HermesError) -> HermesError:
    """The error of a rollout whose model call failed: one that does not fit would not fit again."""
    if isinstance(error, ContextOverflowError):
        return GroupDroppedError("context length", error.message)
    if isinstance(error, UsageError):
        return GroupDroppedError("unsupported model call", error.message)
    return error


def build_groups(
    rollouts: Sequence[Sequence[AgentRollout]], group_size: int, include_messages: bool
) -> list[ScoredDataGroup]:
    """One group for each agent that is trained. `rollouts`: those of one task, each with its agents."""
    names = dict.fromkeys(agent.agent for rollout in rollouts for agent in rollout if agent.trainable)
    groups = []
    for name in names:
        members = [
            agent for rollout in rollouts for agent in rollout if agent.agent == name and agent.trainable
        ]
        groups.append(_build_group(members, group_size, include_messages))
    return groups


def _build_group(members: Sequence[AgentRollout], group_size: int, include_messages: bool) -> ScoredDataGroup:
    pairs = [(sequence, member) for member in members for sequence in _sequences(member)]
    group = cast("ScoredDataGroup", to_group([sequence for sequence, _ in pairs]))
    for overrides, (sequence, member) in zip(group["overrides"] or (), pairs, strict=True):
        overrides |= _distribution(sequence, member)
        overrides["agent"] = member.agent
    if include_messages:
        group["messages"] = cast("list[list[Message]]", [list(member.messages) for _, member in pairs])
    if len(pairs) != group_size:
        group["group_overrides"] = {"group_size": len(pairs)}
    return group


def _sequences(member: AgentRollout) -> list[TrainSequence]:
    exactness = build_sequences(member.calls)
    rollout = RolloutInfo(
        id=new_id(),
        score=member.score,
        stop_reason=member.stop,
        tool_calls=sum(len(message.get("tool_calls") or ()) for message in member.messages),
        parts=member.parts,
        not_trainable=exactness.inexact,
    )
    sequences = exactness.sequences or (TrainSequence((), (), ()),)
    return [replace(sequence, rollout=rollout) for sequence in sequences]


def _distribution(sequence: TrainSequence, member: AgentRollout) -> dict[str, Any]:
    """What the tokens of a sequence were drawn with; one of several distributions is not trained on."""
    stated = {
        (sampling.temperature, sampling.top_p, sampling.top_k)
        for sampling in (member.calls[index].sampling for index in sequence.calls)
    }
    if len(stated) > 1:
        return {"not_trainable": "its model calls were sampled with different settings"}
    if not stated:
        return {}
    names = ("temperature", "top_p", "top_k")
    return {name: value for name, value in zip(names, stated.pop(), strict=True) if value is not None}
