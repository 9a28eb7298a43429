"""openenv: an environment of openenv-core as it is, on a server of yours or of a package.

    hermes env serve openenv --env.url ws://127.0.0.1:8000
    hermes env serve openenv --env.package echo_env --env.python ENVIRONMENT/bin/python

Each rollout has a session of its own: `reset` gives the first observation, which the agent reads as its
task, and each tool call is a step. The tools are those of an MCP environment, or made of the schema of its
actions. When the environment says that the episode is over, so is the rollout. Its reward is the sum of the
steps' rewards, or the last one.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hermes.core import JSON, JSONObject, ToolErrorKind
from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.grading import Range
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.rollout import RolloutContext, RolloutSpec, finished_rollout
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.reward_function import RewardFunctionEnv, split
from hermes.envs.dataset import load_tasks
from hermes.envs.failures import GroupDroppedError
from hermes.envs.openenv.actions import (
    ActionTool,
    mcp_tools,
    names_its_tools,
    observation_text,
    schema_tools,
)
from hermes.envs.openenv.processes import PackageServers
from hermes.envs.openenv.wire import Observation, Session, open_episode, read_about
from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.errors import ConfigError, ToolError
from hermes.tools.base import ENDED, Tool, Workbench

if TYPE_CHECKING:
    from hermes.envs.config import BaseEnvConfig

_OVER = "The episode is over."


class OpenEnvConfig(HermesAgentEnvConfig):
    url: str = Field(default="", description="A running server: ws://HOST:PORT.")
    package: str = Field(
        default="", description="Serve this package, its folder, or MODULE:APP, instead of url."
    )
    python: str = Field(
        default="", description="The interpreter that has the package; none: the one that runs Hermes."
    )
    servers: int = Field(default=1, ge=1, le=256, description="Processes that serve the package.")
    episodes: int = Field(
        default=100, ge=1, description="Tasks, each a seed of its own; dataset_name names other ones."
    )
    eval_share: float = Field(default=0.1, ge=0, lt=1, description="Share of the tasks that is held out.")
    instruction: str | None = Field(
        default=None,
        description="Text before an episode's first observation; none: how the server describes itself.",
    )
    episode_reward: Literal["sum", "last"] = Field(
        default="sum", description="Which of the steps' rewards is the episode's: their sum, or the last."
    )
    hidden_tools: list[str] = Field(
        default=[], description="Tools that are not offered, such as one that shows the reward."
    )
    step_timeout_s: float = Field(default=60, gt=0, description="Seconds the server has for a step.")


@dataclass(frozen=True, slots=True)
class Task:
    """A task: the arguments that reset an episode."""

    key: str
    prompt: str | None
    """Text before the first observation; None: that of the settings."""
    arguments: JSONObject


@dataclass
class Episode:
    """An episode under way: steps it, one after the other, and keeps their rewards."""

    session: Session
    rewards: list[float | None] = field(default_factory=list)
    done: bool = False
    fault: str | None = None
    """The error that the environment's code raised for the last step."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def step(self, action: JSONObject, bench: Workbench) -> str:
        async with self._turn:
            if self.done:
                raise ToolError(_OVER)
            try:
                observation = await self.session.step(action)
            except ToolError as error:
                self.fault = error.message if error.kind == ToolErrorKind.CRASHED else None
                raise
            self.fault = None
            self.rewards.append(observation.reward)
            if observation.done:
                self.done = bench.resources[ENDED] = True
        text = observation_text(observation.data)
        return f"{text}\n{_OVER}".lstrip() if self.done else text

    def reward(self, rule: Literal["sum", "last"]) -> RewardResult:
        """GraderError: the environment failed at the last step, or no step of a complete episode had one."""
        if self.fault is not None:  # had the action been at fault, the policy could have gone on
            raise GraderError(f"the environment failed at the last step: {self.fault}")
        values = [value for value in self.rewards if value is not None]
        if self.done and not values:
            raise GraderError("the environment gave no reward for any step of an episode that has ended")
        total = math.fsum(values) if rule == "sum" else next(reversed(values), 0.0)
        listing = " ".join("-" if value is None else f"{value:g}" for value in self.rewards)
        return RewardResult(
            total,
            {"steps": len(self.rewards), "done": float(self.done)},
            f"step rewards: {listing or 'none'}",
        )


class OpenEnvEnv(HermesAgentBaseEnv):
    """An environment of openenv-core: --env.url ws://HOST:PORT, or --env.package NAME."""

    name = "openenv"
    env_config_cls: ClassVar[Any] = OpenEnvConfig
    config: OpenEnvConfig
    default_toolsets: ClassVar[Sequence[str]] = ()
    reward_range: ClassVar[Range] = (-math.inf, math.inf)
    no_eval_items_hint: ClassVar[str] = "Tasks are held out of ten or more: --env.episodes, --env.eval_share."
    _servers: PackageServers | None = None

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, Any]:
        return cls.env_config_cls(), RewardFunctionEnv.config_init()[1]

    async def setup(self) -> None:
        """ConfigError: there is no server, or it offers no tools."""
        config = self.config
        if bool(config.url) == bool(config.package):
            raise ConfigError(
                "openenv needs a server or a package.",
                "Set one of them: --env.url ws://HOST:PORT, --env.package NAME",
            )
        if config.package:
            python = Path(config.python or sys.executable).expanduser()
            folder = self.hermes_config().home / "openenv"
            self._servers = PackageServers(python, config.package, config.servers, folder)
        self._episodes: dict[str, Episode] = {}
        tasks = [Task(f"seed-{seed}", None, {"seed": seed}) for seed in range(config.episodes)]
        if config.dataset_name is not None:
            rows = await asyncio.to_thread(
                load_tasks, config.dataset_name, config.dataset_split, config.prompt_field
            )
            tasks = [self._task(row) for row in rows]
        self._tasks, self._held_out_tasks = split(tasks, config.eval_share)
        urls = await self._urls()
        about = await read_about(urls[0], config.start_patience_s)
        self._instruction = about.description if config.instruction is None else config.instruction
        actions = (
            await self._list_tools(urls) if names_its_tools(about.actions) else schema_tools(about.actions)
        )
        self._actions = [action for action in actions if action.name not in config.hidden_tools]
        if not self._actions:
            raise ConfigError(f"the OpenEnv server {urls[0]} offers no tools.")

    def _task(self, row: dict[str, Any]) -> Task:
        arguments: JSONObject = {
            name: value for name, value in row.items() if name != self.config.prompt_field
        }
        return Task(self.item_key(row), str(row[self.config.prompt_field]), arguments)

    async def _urls(self) -> list[str]:
        return [self.config.url] if self._servers is None else await self._servers.urls()

    async def _list_tools(self, urls: Sequence[str]) -> list[ActionTool]:
        session, _ = await self._open(urls, self._tasks[0].arguments)
        try:
            return mcp_tools(await session.list_tools())
        finally:
            await session.close()

    async def _open(self, urls: Sequence[str], arguments: dict[str, JSON]) -> tuple[Session, Observation]:
        config = self.config
        patience_s = config.worker_timeout if config.worker_timeout > 0 else config.outage_patience_s
        return await open_episode(urls, arguments, answer_s=config.step_timeout_s, patience_s=patience_s)

    def item_key(self, item: Any) -> str:
        return item.key if isinstance(item, Task) else super().item_key(item)

    def format_prompt(self, item: Task) -> str:
        return self._instruction if item.prompt is None else item.prompt

    @asynccontextmanager
    async def run_rollout(
        self, context: RolloutContext, spec: RolloutSpec
    ) -> AsyncIterator[tuple[AgentResult, Workbench]]:
        """A session around the rollout; it is open until the rollout has been scored."""
        session, first = await self._open(await self._urls(), spec.item.arguments)
        try:
            if first.done:
                raise GroupDroppedError("environment", f"{spec.item.key}: the episode began as over")
            episode = Episode(session)
            tools = [self._tool(action, episode) for action in self._actions]
            prompt = "\n\n".join(text for text in (spec.prompt, observation_text(first.data)) if text)
            episode_spec = replace(spec, prompt=prompt or "Begin.", extra_tools=[*spec.extra_tools, *tools])
            async with finished_rollout(context, episode_spec) as (result, bench):
                self._episodes[bench.trajectory_id] = episode
                try:
                    yield result, bench
                finally:
                    self._episodes.pop(bench.trajectory_id)
        finally:
            await session.close()
            if session.hangs and self._servers is not None:
                await self._servers.end(session.url)

    def _tool(self, action: ActionTool, episode: Episode) -> Tool:
        async def handler(arguments: JSONObject, bench: Workbench) -> str:
            return await episode.step(action.action(arguments), bench)

        # The session's own limit comes first: a step that takes too long is the server's failure.
        timeout_s = 100 * self.config.step_timeout_s
        return Tool(
            action.name, "openenv", action.description, action.parameters, handler, timeout_s=timeout_s
        )

    async def compute_reward(self, item: Task, result: AgentResult, ctx: ToolContext) -> RewardResult:  # type: ignore[override]
        return self._episodes[ctx.task_id].reward(self.config.episode_reward)

    async def close(self) -> None:
        """Ends the servers of the package, and the connections to the model."""
        if self._servers is not None:
            await self._servers.close()
        await super().close()


if __name__ == "__main__":
    OpenEnvEnv.cli()
