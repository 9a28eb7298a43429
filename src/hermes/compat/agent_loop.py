"""`environments.agent_loop` and `environments.tool_context` of the reference, over the one agent loop.

    agent = HermesAgentLoop(server=self.server, tool_schemas=tools, valid_tool_names=names, task_id=…)
    result = await agent.run(messages)
    ctx = ToolContext(task_id)              # the rollout's own sandbox, which is there until ctx.cleanup()

The rollout is recorded, sandboxed and limited like every other. One that infrastructure broke is tried again
and then raises: it has no result to score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from hermes.core import JSONObject, Message, Sampling, new_id
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

if TYPE_CHECKING:
    from hermes.envs.agent.env import HermesAgentBaseEnv
    from hermes.envs.agent.result import AgentResult
    from hermes.tools.base import Workbench

_ROLES = {"system": Message.system, "user": Message.user, "assistant": Message.assistant}


class OpenRollout:
    """A rollout that has ended and whose sandbox is still there."""

    def __init__(self, bench: Workbench, stack: AsyncExitStack) -> None:
        self.bench = bench
        self._stack = stack

    async def close(self) -> None:
        """Closing twice is closing once."""
        await self._stack.aclose()


_environments: WeakValueDictionary[int, HermesAgentBaseEnv] = WeakValueDictionary()
"""Identity of model servers → the environment that holds them: a loop is given the servers only."""
_rollouts: WeakValueDictionary[str, OpenRollout] = WeakValueDictionary()
"""By task id; the environment holds them."""


def register(env: HermesAgentBaseEnv) -> None:
    """Loops that are given the environment's servers run in its workplace."""
    _environments[id(env.server)] = env


class HermesAgentLoop:
    """Runs an agent on messages, with the signature of the reference."""

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
        """`tool_schemas` are those of `_resolve_tools_for_group`; which tools are offered, the names say."""
        env = _environments.get(id(server))
        if env is None:
            raise UsageError(
                "HermesAgentLoop got servers that belong to no environment.", "Give it 'server=self.server'."
            )
        self._env = env
        self._names = frozenset(valid_tool_names)
        self._max_turns = max_turns
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens, extra_body=extra_body)
        self.task_id = task_id or new_id()

    async def run(self, messages: Sequence[JSONObject]) -> AgentResult:
        """The finished rollout; the last message is the task, and a user's."""
        *opening, prompt = [_message(data) for data in messages] or [Message.system("")]
        if prompt.role != "user":
            raise UsageError("the last message is not a user's.", "End 'messages' with the task.")
        for attempt in range(MAX_ATTEMPTS):
            try:
                return await self._run(opening, prompt.content)
            except RolloutFailedError:
                if attempt + 1 == MAX_ATTEMPTS:
                    raise
        raise AssertionError("every attempt returns or raises")

    async def _run(self, opening: Sequence[Message], prompt: str) -> AgentResult:
        async with AsyncExitStack() as stack:
            rollout = finished_rollout(self._workplace(), self._assignment(opening, prompt))
            result, bench = await stack.enter_async_context(rollout)
            await asyncio.gather(*(process.kill() for process in bench.processes.values()))
            open_rollout = OpenRollout(bench, stack.pop_all())
        _rollouts[self.task_id] = open_rollout
        self._env._resources.finished_rollouts[self.task_id] = open_rollout
        return result

    def _workplace(self) -> RolloutContext:
        place = self._env.rollout_context()
        limits = place.config.settings.limits.model_copy(update={"max_turns": self._max_turns})
        settings = place.config.settings.model_copy(update={"limits": limits})
        return replace(place, config=replace(place.config, settings=settings))

    def _assignment(self, opening: Sequence[Message], prompt: str) -> RolloutSpec:
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
    """ToolContext by the task id of a finished `HermesAgentLoop`."""

    def __init__(self, task_id: str) -> None:
        rollout = _rollouts.get(task_id)
        if rollout is None:
            raise UsageError(
                f"no rollout with the task id '{task_id}' has a sandbox.",
                "Make the ToolContext after 'await agent.run(messages)', and before its cleanup().",
            )
        super().__init__(rollout.bench)
        self.task_id = task_id
        self._rollout = rollout

    def cleanup(self) -> asyncio.Task[None]:
        """Closes the rollout's sandbox; may be awaited, and need not be."""
        return asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        _rollouts.pop(self.task_id, None)
        await self._exit_stack.aclose()
        await self._rollout.close()


def _message(data: JSONObject) -> Message:
    role, content = data.get("role"), data.get("content")
    if role not in _ROLES or not isinstance(content, str):
        raise UsageError(
            f"a message of the role '{role}' cannot begin a rollout.",
            "Use system, user and assistant, with text.",
        )
    return _ROLES[role](content)
