"""`environments.hermes_base_env` of the reference: HermesAgentBaseEnv with the methods its environments call.

An environment that overrides `evaluate` runs agents with `HermesAgentLoop` and passes `compute_reward` a
`ToolContext(task_id)`. Reward functions that use its results without `await` then run in a thread, as they do
in training.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from hermes.compat.agent_loop import TaskToolContext, register
from hermes.core import JSONObject
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.grading import uses_results_directly
from hermes.envs.agent.pending import LoopBoundServer, in_own_thread


class ReferenceAgentEnv(HermesAgentBaseEnv):
    """The base class that files written for the reference import as HermesAgentBaseEnv."""

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
