"""hermes-agent's `environments.agent_loop` and `environments.tool_context`, on Hermes's agent loop.

    agent = HermesAgentLoop(server=self.server, tool_schemas=tools, valid_tool_names=names, task_id=…)
    result = await agent.run(messages)
    ctx = ToolContext(task_id)              # the rollout's sandbox, open until ctx.cleanup()

The rollout is recorded, sandboxed and limited like every other. After an infrastructure failure it is
retried; if that fails too, an error is raised: there is no result to score.

`OriginalAgentEnv` is hermes-agent's HermesAgentBaseEnv, with the methods that its environments call. An
environment that overrides `evaluate` runs agents with `HermesAgentLoop` and passes `compute_reward` a
`ToolContext(task_id)`. Reward functions that use its results without `await` then run in a thread, as they do
in training.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from hermes.core import JSONObject, Message, Sampling, new_id
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.grading import uses_results_directly
from hermes.envs.agent.pending import LoopBoundServer, in_own_thread
from hermes.envs.agent.rollout import (
    MAX_ATTEMPTS,
    RolloutContext,
    RolloutFailedError,
    RolloutSpec,
    finished_rollout,
)
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.phase import current_phase
from hermes.errors import UsageError
from hermes.sandbox.base import end_processes

if TYPE_CHECKING:
    from hermes.envs.agent.result import AgentResult
    from hermes.tools.base import Workbench

_ROLES = {"system": Message.system, "user": Message.user, "assistant": Message.assistant}


class OpenRollout:
    """A finished rollout whose sandbox is still open."""

    def __init__(self, bench: Workbench, stack: AsyncExitStack) -> None:
        self.bench = bench
        self._stack = stack

    async def close(self) -> None:
        """Closes the sandbox. Idempotent."""
        await self._stack.aclose()


_environments: WeakValueDictionary[int, HermesAgentBaseEnv] = WeakValueDictionary()
"""id() of an environment's servers → the environment: a loop gets the servers only."""
_rollouts: WeakValueDictionary[str, OpenRollout] = WeakValueDictionary()
"""By task id; the environment owns them."""


def register(env: HermesAgentBaseEnv) -> None:
    """Makes loops with this environment's servers run in its context."""
    _environments[id(env.server)] = env


class HermesAgentLoop:
    """Runs an agent on messages, with the signature of hermes-agent's."""

    def __init__(
        self,
        server: Any,
        tool_schemas: Sequence[JSONObject] = (),
        valid_tool_names: Collection[str] = (),
        max_turns: int = 30,
        task_id: str | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        extra_body: dict[str, Any] | None = None,
    ) -> None:
        """`valid_tool_names` select the tools; `tool_schemas` (of `_resolve_tools_for_group`) are ignored."""
        env = _environments.get(id(server))
        if env is None:
            raise UsageError(
                "HermesAgentLoop got servers that belong to no environment.", "Pass 'server=self.server'."
            )
        self._env = env
        self._names = frozenset(valid_tool_names)
        self._max_turns = max_turns
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens, extra_body=extra_body)
        self.task_id = task_id or new_id()

    async def run(self, messages: Sequence[JSONObject]) -> AgentResult:
        """The finished rollout. The last message is the task, with the role user."""
        *opening, prompt = [_message(data) for data in messages] or [Message.system("")]
        if prompt.role != "user":
            raise UsageError("the last message does not have the role user.", "End 'messages' with the task.")
        for attempt in range(MAX_ATTEMPTS):
            try:
                return await self._run(opening, prompt.content)
            except RolloutFailedError:
                if attempt + 1 == MAX_ATTEMPTS:
                    raise
        raise AssertionError("every attempt returns or raises")

    async def _run(self, opening: Sequence[Message], prompt: str) -> AgentResult:
        async with AsyncExitStack() as stack:
            rollout = finished_rollout(self._context(), self._spec(opening, prompt))
            result, bench = await stack.enter_async_context(rollout)
            await end_processes(bench.sandbox, bench.processes.values())
            open_rollout = OpenRollout(bench, stack.pop_all())
        _rollouts[self.task_id] = open_rollout
        self._env._resources.finished_rollouts[self.task_id] = open_rollout
        return result

    def _context(self) -> RolloutContext:
        context = self._env.rollout_context()
        limits = context.config.settings.limits.model_copy(update={"max_turns": self._max_turns})
        settings = context.config.settings.model_copy(update={"limits": limits})
        return replace(context, config=replace(context.config, settings=settings))

    def _spec(self, opening: Sequence[Message], prompt: str) -> RolloutSpec:
        from hermes.tools import registry

        return RolloutSpec(
            item=None,
            prompt=prompt,
            opening=opening,
            toolsets=sorted({registry.get(name).toolset for name in self._names}),
            extra_tools=(),
            files={},
            sampling=self._sampling,
            task_id=self.task_id,
            sample_index=0,
            metadata={"phase": current_phase()},
            only_tools=self._names,
        )


class TaskToolContext(ToolContext):
    """The ToolContext of a finished `HermesAgentLoop`, by its task id."""

    def __init__(self, task_id: str) -> None:
        rollout = _rollouts.get(task_id)
        if rollout is None:
            raise UsageError(
                f"there is no open sandbox for the task id '{task_id}'.",
                "Create the ToolContext after 'await agent.run(messages)' and before cleanup().",
            )
        super().__init__(rollout.bench)
        self.task_id = task_id
        self._rollout = rollout

    def cleanup(self) -> asyncio.Task[None]:
        """Closes the rollout's sandbox. Awaiting it is optional."""
        return asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        _rollouts.pop(self.task_id, None)
        await self._exit_stack.aclose()
        await self._rollout.close()


def _message(data: JSONObject) -> Message:
    role, content = data.get("role"), data.get("content")
    if role not in _ROLES or not isinstance(content, str):
        raise UsageError(
            f"a message with the role '{role}' cannot open a rollout.",
            "Use system, user and assistant, with text.",
        )
    return _ROLES[role](content)


class OriginalAgentEnv(HermesAgentBaseEnv):
    """The base class that files written for hermes-agent import as HermesAgentBaseEnv."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        compute_reward = cls.__dict__.get("compute_reward")
        if inspect.iscoroutinefunction(compute_reward) and uses_results_directly(compute_reward):
            cls.compute_reward = _run_in_thread(compute_reward)  # type: ignore[method-assign]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        register(self)

    def _resolve_tools_for_group(self) -> tuple[list[JSONObject], set[str]]:
        """The tools of a group: their schemas and their names."""
        from hermes.tools.registry import select

        config = self.hermes_config()
        tools, _ = select(self.toolsets_for(None), config.settings, config.environ, require_available=False)
        return [tool.schema for tool in tools], {tool.name for tool in tools}

    async def close(self) -> None:
        """Also closes the sandboxes of rollouts without a `cleanup`."""
        rollouts, self._resources.finished_rollouts = self._resources.finished_rollouts, {}
        for rollout in rollouts.values():
            await rollout.close()
        await super().close()


def _run_in_thread(compute_reward: Callable[..., Any]) -> Callable[..., Any]:
    """Runs in a thread with a `ToolContext(task_id)`; unchanged with the framework's own context."""

    @functools.wraps(compute_reward)
    async def wrapper(self: Any, item: Any, result: Any, ctx: Any) -> Any:
        if not isinstance(ctx, TaskToolContext):
            return await compute_reward(self, item, result, ctx)
        if isinstance(self.server, LoopBoundServer):
            self.server.bind_to_running_loop()
        blocking = ctx.blocking()
        return await in_own_thread(lambda: asyncio.run(compute_reward(self, item, result, blocking)))

    return wrapper
