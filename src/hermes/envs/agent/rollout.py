"""One rollout of an agent environment: a fresh sandbox, the one agent loop, the verdict, the record.

A rollout that infrastructure broke is run again, a bounded number of times; so is one whose grader failed.
What still has no reward then is an error with a reason, for whoever counts, and never a score.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hermes.agent.build import RolloutPlan, new_header, open_agent
from hermes.batch.reward import GraderError
from hermes.core import Boundary, Message, Outcome, Reward, Sampling, Source, Step, StopReason, Trajectory
from hermes.envs.agent.grading import ComputeReward, Range, grade
from hermes.envs.agent.result import AgentResult, read_result
from hermes.envs.agent.result_budget import ResultBudget
from hermes.envs.failures import GroupDroppedError
from hermes.envs.rewards.result import RewardResult
from hermes.errors import HermesError, ProviderError, SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hermes.config.load import Config
    from hermes.envs.agent.config import HermesAgentEnvConfig
    from hermes.models.base import ChatModel
    from hermes.store import Writer
    from hermes.tools.base import Tool, Workbench

MAX_ATTEMPTS = 2
"""How often one rollout is tried; its group, once it has failed, is tried again by the run itself."""


class RolloutFailedError(HermesError):
    """A rollout came to nothing through no fault of the policy's."""

    def __init__(self, outcome: Outcome, trajectory_id: str) -> None:
        super().__init__(f"{outcome.detail or outcome.stop_reason.value} (trajectory {trajectory_id})")
        self.outcome = outcome


@dataclass(frozen=True)
class Scored:
    """A rollout and its reward."""

    result: AgentResult
    reward: RewardResult


@dataclass(frozen=True)
class RolloutSpec:
    """What one rollout is about."""

    item: Any
    prompt: str
    opening: Sequence[Message]
    """Said before the prompt: a system prompt, examples."""
    toolsets: Sequence[str]
    extra_tools: Sequence[Tool]
    """Beside those of the toolsets."""
    files: Mapping[str, bytes]
    sampling: Sampling
    task_id: str
    sample_index: int
    metadata: Mapping[str, Any]
    only_tools: frozenset[str] | None = None
    """Of the toolsets' tools, only these; None: all."""


@dataclass(frozen=True)
class RolloutContext:
    """What all rollouts of an environment share."""

    name: str
    run_id: str
    settings: HermesAgentEnvConfig
    config: Config
    writer: Writer
    new_model: Callable[[], ChatModel]
    reward_range: Range


async def run_scored(
    place: RolloutContext, assign: Callable[[], RolloutSpec], compute: ComputeReward
) -> Scored:
    """A rollout with a reward. ProviderError, SandboxError or GraderError if none could be had.

    GroupDroppedError if it ran out of time, or the task cannot even be put to the model.
    """
    failed: HermesError | None = None
    for _ in range(MAX_ATTEMPTS):
        try:
            return await _attempt(place, assign(), compute)
        except RolloutFailedError as error:
            failed = _as_infrastructure(error)
        except (GraderError, ProviderError, SandboxError) as error:
            failed = error
    assert failed is not None
    raise failed


async def _attempt(place: RolloutContext, assignment: RolloutSpec, compute: ComputeReward) -> Scored:
    async with finished_rollout(place, assignment) as (result, bench):
        reward = await grade(compute, assignment.item, result, bench, place.reward_range)
    await _record(place, result.trajectory.header.id, reward)
    return Scored(result, reward)


@asynccontextmanager
async def finished_rollout(
    place: RolloutContext, assignment: RolloutSpec
) -> AsyncIterator[tuple[AgentResult, Workbench]]:
    """Runs the agent to its end and keeps its sandbox for the block.

    RolloutFailedError if infrastructure ended it; GroupDroppedError if it ran out of time, or the task cannot
    even be put to the model.
    """
    model = place.new_model()
    budget = ResultBudget(place.settings)
    plan = RolloutPlan(
        toolsets=assignment.toolsets,
        only_tools=assignment.only_tools,
        extra_tools=assignment.extra_tools,
        adapt=budget.adapt,
        sampling=assignment.sampling,
        files=assignment.files,
    )
    header = replace(
        new_header(Source.ENV, model),
        run_id=place.run_id,
        task_id=assignment.task_id,
        sample_index=assignment.sample_index,
        metadata={"environment": place.name, **assignment.metadata},
    )
    async with open_agent(place.config, place.writer, model, header, plan) as loop:
        budget.turn = lambda: len(loop.messages)
        for message in assignment.opening:
            loop.prepare(message, ephemeral=message.role != "system")
        steps = [step async for step in loop.turn(Message.user(assignment.prompt))]
        assert loop.outcome is not None
        result = read_result(Trajectory(loop.recorder.header, _in_order(steps), loop.outcome))
        if result.outcome.infrastructure:
            raise RolloutFailedError(result.outcome, header.id)
        if result.outcome.stop_reason is StopReason.TIMEOUT:
            # Whoever took the time, model server or tools: it says nothing certain about the policy.
            raise GroupDroppedError("timeout", f"{result.outcome.detail} (trajectory {header.id})")
        if not result.turns_used:
            raise GroupDroppedError("prompt too long", f"{result.outcome.detail} (trajectory {header.id})")
        yield result, loop.bench


async def _record(place: RolloutContext, trajectory_id: str, reward: RewardResult) -> None:
    detail = {"parts": dict(reward.parts), "detail": reward.detail}
    row = Reward(trajectory_id, reward.value, place.name, detail, time.time_ns() // 1_000_000)
    await asyncio.wrap_future(place.writer.add_reward(row))


def _in_order(steps: Sequence[Step]) -> list[Step]:
    """Parallel results come as they finish; the conversation has them in the order of their calls."""
    return sorted(steps, key=lambda step: step.index)


def _as_infrastructure(error: RolloutFailedError) -> HermesError:
    kind = SandboxError if error.outcome.boundary is Boundary.SANDBOX else ProviderError
    return kind(error.message)
