"""One rollout of an agent environment: a fresh sandbox, the agent loop, the reward, the record in the store.

A rollout that an infrastructure failure ended is run again, a bounded number of times; so is one whose grader
failed. If there is no reward then, an error with a reason is raised; a failure is never a score.

Tool results have a budget, per tool and for all results of one turn together. A result over budget is saved
to a file in the sandbox; the model gets its beginning and the path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hermes.agent.build import RolloutPlan, new_header, open_agent
from hermes.batch.reward import GraderError
from hermes.core import (
    Boundary,
    JSONObject,
    Message,
    Outcome,
    Reward,
    Role,
    Sampling,
    Source,
    Step,
    StopReason,
    Trajectory,
    content_hash,
)
from hermes.core.clock import now_ms
from hermes.core.texts import Texts, prompt_with
from hermes.envs.agent.grading import ComputeReward, Range, grade
from hermes.envs.agent.result import AgentResult, read_result
from hermes.envs.failures import GroupDroppedError
from hermes.envs.rewards.result import RewardResult
from hermes.errors import HermesError, ProviderError, SandboxError
from hermes.safety.forbidden import FORBIDDEN_PATHS, ForbiddenTouch, find_touches
from hermes.sandbox.base import Sandbox, end_processes
from hermes.tools.base import Tool, ToolOutput, Workbench
from hermes.tools.result_budget import storable
from hermes.tools.scratch import write_scratch

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.envs.agent.config import HermesAgentEnvConfig
    from hermes.models.base import ChatModel
    from hermes.store import Writer

MAX_ATTEMPTS = 2
"""Attempts at one rollout. When it has failed, its whole group is retried by the runner."""
_MAX_RECORDED = 20
"""Forbidden paths that the record of a reward names."""


class RolloutFailedError(HermesError):
    """An infrastructure failure ended a rollout."""

    def __init__(self, outcome: Outcome, trajectory_id: str) -> None:
        super().__init__(f"{outcome.detail or outcome.stop_reason.value} (trajectory {trajectory_id})")
        self.outcome = outcome


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout and its reward."""

    result: AgentResult
    reward: RewardResult
    forbidden: tuple[ForbiddenTouch, ...] = ()
    """Its tool calls that name a path which no task needs."""


@dataclass(frozen=True)
class RolloutSpec:
    """The inputs of one rollout."""

    item: Any
    prompt: str
    opening: Sequence[Message]
    """Before the prompt: a system prompt, examples."""
    toolsets: Sequence[str]
    extra_tools: Sequence[Tool]
    """In addition to those of the toolsets."""
    files: Mapping[str, bytes]
    sampling: Sampling
    task_id: str
    sample_index: int
    metadata: Mapping[str, Any]
    only_tools: frozenset[str] | None = None
    """Only these of the toolsets' tools are offered; None: all."""
    open_sandbox: Callable[[Sequence[str]], Awaitable[Sandbox]] | None = None
    """Opens the sandbox in place of the configured one, with these paths of this machine shown in it."""
    next_prompt: Callable[[], Awaitable[str | None]] | None = None
    """The next message once a prompt is done and all processes of the agent are ended; None: that was all."""


@dataclass(frozen=True)
class RolloutContext:
    """The parts that all rollouts of an environment share."""

    name: str
    run_id: str
    settings: HermesAgentEnvConfig
    config: Config
    writer: Writer
    new_model: Callable[[], ChatModel]
    reward_range: Range


RunRollout = Callable[
    [RolloutContext, RolloutSpec], AbstractAsyncContextManager[tuple[AgentResult, Workbench]]
]
"""Runs a rollout to its end, and keeps its sandbox open for the block."""


async def run_scored(
    context: RolloutContext,
    new_spec: Callable[[], RolloutSpec],
    compute: ComputeReward,
    run: RunRollout,
    attempts: int = MAX_ATTEMPTS,
) -> ScoredRollout:
    """A rollout with its reward. ProviderError, SandboxError or GraderError if there is none.

    GroupDroppedError if it ran out of time, or the prompt does not fit the model's context.
    """
    last_error: HermesError | None = None
    for _ in range(attempts):
        try:
            return await _attempt(context, new_spec(), compute, run)
        except RolloutFailedError as error:
            last_error = _as_infrastructure(error)
        except (GraderError, ProviderError, SandboxError) as error:
            last_error = error
    assert last_error is not None
    raise last_error


async def _attempt(
    context: RolloutContext, spec: RolloutSpec, compute: ComputeReward, run: RunRollout
) -> ScoredRollout:
    async with run(context, spec) as (result, bench):
        reward = await grade(compute, spec.item, result, bench, context.reward_range)
    forbidden = find_touches(result.trajectory.steps, context.settings.forbidden_paths)
    rollout = ScoredRollout(result, reward, tuple(forbidden))
    await _record(context, rollout)
    return rollout


@asynccontextmanager
async def finished_rollout(
    context: RolloutContext, spec: RolloutSpec
) -> AsyncIterator[tuple[AgentResult, Workbench]]:
    """Runs the agent to its end, and keeps its sandbox open for the block.

    RolloutFailedError if an infrastructure failure ended it; GroupDroppedError if it ran out of time, or the
    prompt does not fit the model's context.
    """
    model, open_sandbox = context.new_model(), spec.open_sandbox
    budget = ResultBudget(context.settings)
    plan = RolloutPlan(
        toolsets=spec.toolsets,
        only_tools=spec.only_tools,
        extra_tools=spec.extra_tools,
        adapt=budget.adapt,
        sampling=spec.sampling,
        files=spec.files,
        open_sandbox=None if open_sandbox is None else lambda: open_sandbox(()),
    )
    header = replace(
        new_header(Source.ENV, model),
        run_id=context.run_id,
        task_id=spec.task_id,
        sample_index=spec.sample_index,
        metadata={"environment": context.name, **spec.metadata},
    )
    async with open_agent(context.config, context.writer, model, header, plan) as loop:
        budget.turn = lambda: len(loop.messages)
        for message in with_texts(spec.opening, context.config.texts):
            loop.prepare(message, ephemeral=message.role != "system")
        prompt: str | None = spec.prompt
        steps: list[Step] = []
        while prompt is not None:
            steps += [step async for step in loop.turn(Message.user(prompt))]
            assert loop.outcome is not None
            prompt = None
            if spec.next_prompt is not None and loop.outcome.stop_reason is StopReason.COMPLETED:
                await end_processes(loop.bench.sandbox, loop.bench.processes.values())
                prompt = await spec.next_prompt()
        assert loop.outcome is not None
        result = read_result(Trajectory(loop.recorder.header, steps, loop.outcome))
        if result.outcome.infrastructure:
            raise RolloutFailedError(result.outcome, header.id)
        if result.outcome.stop_reason is StopReason.TIMEOUT:
            # The model server or a tool may have been slow: a timeout is no verdict on the policy.
            raise GroupDroppedError("timeout", f"{result.outcome.detail} (trajectory {header.id})")
        if not result.turns_used:
            raise GroupDroppedError("prompt too long", f"{result.outcome.detail} (trajectory {header.id})")
        yield result, loop.bench


def with_texts(opening: Sequence[Message], texts: Texts) -> list[Message]:
    """The opening whose system prompt is that of a policy's texts."""
    prompts = [message.content for message in opening if message.role is Role.SYSTEM]
    prompt = prompt_with(texts, "\n\n".join(prompts))
    if not texts or not prompt:
        return list(opening)
    return [Message.system(prompt), *(message for message in opening if message.role is not Role.SYSTEM)]


async def _record(context: RolloutContext, rollout: ScoredRollout) -> None:
    reward, trajectory_id = rollout.reward, rollout.result.trajectory.header.id
    detail: JSONObject = {"parts": dict(reward.parts), "detail": reward.detail}
    if rollout.forbidden:
        detail[FORBIDDEN_PATHS] = [touch.to_json() for touch in rollout.forbidden[:_MAX_RECORDED]]
    row = Reward(trajectory_id, reward.value, context.name, detail, now_ms())
    await asyncio.wrap_future(context.writer.add_reward(row))


def _as_infrastructure(error: RolloutFailedError) -> HermesError:
    kind = SandboxError if error.outcome.boundary is Boundary.SANDBOX else ProviderError
    return kind(error.message)


_UNBOUNDED = 1 << 40


@dataclass
class ResultBudget:
    """The budget of one rollout."""

    config: HermesAgentEnvConfig
    turn: Callable[[], int] = field(default=lambda: 0)
    """Identifies the current turn; set when the rollout's loop exists."""
    _spent: tuple[int, int] = (0, 0)
    """The turn, and the characters shown in it so far."""

    def adapt(self, tool: Tool) -> Tool:
        """The tool with this budget instead of its own."""
        limit = (self.config.tool_result_overrides or {}).get(
            tool.name, self.config.default_result_size_chars
        )

        async def handler(arguments: JSONObject, bench: Workbench) -> ToolOutput:
            output = await tool.handler(arguments, bench)
            return await self._fit_to_budget(
                ToolOutput(output) if isinstance(output, str) else output, limit, bench
            )

        return replace(tool, handler=handler, max_result_chars=_UNBOUNDED)

    async def _fit_to_budget(self, output: ToolOutput, limit: int, bench: Workbench) -> ToolOutput:
        turn, spent = self._spent
        if turn != self.turn():
            turn, spent = self.turn(), 0
        size = len(output.content)
        if size <= min(limit, self.config.turn_budget_chars - spent):
            self._spent = turn, spent + size
            return output
        preview = await self._save(output, bench)
        self._spent = turn, spent + len(preview)
        return replace(output, content=preview)

    async def _save(self, output: ToolOutput, bench: Workbench) -> str:
        full = storable(output.full if output.full is not None else output.content)
        name = f"results/{content_hash(full)[:16]}.txt"
        try:
            where = f'path="{await write_scratch(bench, name, full.encode("utf-8"))}"'
        except OSError as error:  # the model still gets the preview, and the error
            where = f'not_saved="{error.strerror or type(error).__name__}"'
        preview = full[: self.config.preview_size_chars]
        return f'<persisted-output {where} chars="{len(full)}">\n{preview}\n</persisted-output>'
