"""harbor: the tasks of a folder in Harbor's form, as they are, done by our agent or by a program of yours.

    hermes env check harbor tasks/ --solutions
    hermes env serve harbor --env.dataset_path tasks/
    hermes env serve harbor --env.dataset_path tasks/ --env.agent "pi -p {prompt}"

Each rollout is a trial with files of its own; the task's tests score it, out of the agent's reach. A task
that cannot be run here is left out with its reason, and so is one of which `hermes env check harbor` has
found that its reference solution does not score 1, or that doing nothing scores.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict, Field

from hermes.batch.options import HarborTaskOptions
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.grading import Range
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.rollout import RolloutContext, RolloutSpec, finished_rollout
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.program import ProgramConfig, ProgramEnv
from hermes.envs.builtin.reward_function import split
from hermes.envs.harbor.check import usable_tasks
from hermes.envs.harbor.dataset import read_tasks
from hermes.envs.harbor.place import PlaceOptions
from hermes.envs.harbor.places import open_places, sweep_all
from hermes.envs.harbor.schema import TaskError
from hermes.envs.harbor.task import Task
from hermes.envs.harbor.trial import Trial, open_trial
from hermes.envs.programs.launch import find_program
from hermes.envs.programs.run import finished_program
from hermes.envs.rewards.result import RewardResult
from hermes.errors import ConfigError, SandboxError

if TYPE_CHECKING:
    from hermes.sandbox.base import Sandbox
    from hermes.tools.base import Workbench

logger = logging.getLogger(__name__)


class HarborConfig(ProgramConfig, HarborTaskOptions):
    model_config = ConfigDict(frozen=False)

    dataset_path: str = Field(default="", description="A folder of Harbor tasks, or one task.")


class HarborEnv(ProgramEnv):
    """Tasks in Harbor's form: --env.dataset_path FOLDER, also with --env.agent."""

    name = "harbor"
    env_config_cls: ClassVar[Any] = HarborConfig
    config: HarborConfig
    default_toolsets: ClassVar[Sequence[str]] = ("terminal", "file")
    reward_range: ClassVar[Range] = (-math.inf, math.inf)

    @property
    def display_name(self) -> str:
        return super().display_name if self.config.agent else self.name

    async def setup(self) -> None:
        """ConfigError: no task of the folder can be used."""
        config = self.config
        if not config.dataset_path or config.reward or config.dataset_name:
            raise ConfigError(
                "harbor needs a folder of tasks, which have their own prompts and rewards.",
                "Set dataset_path, and neither dataset_name nor reward: --env.dataset_path FOLDER",
            )
        hermes = self.hermes_config()
        self._places = await asyncio.to_thread(
            open_places,
            hermes.home,
            hermes.settings.sandbox,
            PlaceOptions.of(config),
            config.place,
        )
        await asyncio.to_thread(sweep_all, hermes.home, self._places)
        folder = await asyncio.to_thread(read_tasks, Path(config.dataset_path), hermes.environ)
        verdicts_home = None if config.unsound else hermes.home
        tasks, reasons = usable_tasks(folder, self._places, verdicts_home, one_stage=bool(config.agent))
        for name, reason in reasons.items():
            logger.warning("task %s is left out: %s", name, reason)
        self._tasks, self._held_out_tasks = split(tasks, config.eval_share)
        self._trials: dict[str, Trial] = {}
        if config.agent:
            await self.open_programs(find_program(config.agent, config.agent_paths))

    def format_prompt(self, item: Task) -> str:  # type: ignore[override]
        return item.stages[0].instruction

    def opening(self, item: Task) -> Sequence[Any]:  # type: ignore[override]
        return HermesAgentBaseEnv.opening(self, item)

    def workspace_files(self, item: Task) -> dict[str, bytes]:  # type: ignore[override]
        return {}

    @asynccontextmanager
    async def run_rollout(
        self, context: RolloutContext, spec: RolloutSpec
    ) -> AsyncIterator[tuple[AgentResult, Workbench]]:
        """A trial around the rollout; it is open until the rollout has been scored."""
        async with open_trial(spec.item, self._places.of(spec.item), self.hermes_config().home) as trial:

            async def open_sandbox(shown_paths: Sequence[str]) -> Sandbox:
                await trial.start()
                return await trial.open_agent(shown_paths)

            async def next_prompt() -> str | None:
                await trial.score()
                if (stage := trial.stage) is None:
                    return None
                await trial.start()
                return stage.instruction

            several = len(spec.item.stages) > 1
            spec = replace(spec, open_sandbox=open_sandbox, next_prompt=next_prompt if several else None)
            if self.config.agent:
                assert self._host is not None, "setup has run"
                settings = replace(self._program_settings, timeout_s=trial.timeout_s)
                rollout = finished_program(context, spec, self._host, settings)
            else:
                rollout = finished_rollout(_with_time(context, trial.timeout_s), spec)
            try:
                async with rollout as (result, bench):
                    self._trials[result.trajectory.header.id] = trial
                    yield result, bench
                    self._trials.pop(result.trajectory.header.id, None)
            except TaskError as error:  # its image or files; the task was fine when it was read
                raise SandboxError(f"task {spec.item.key}: {error.message}", error.hint) from error

    async def compute_reward(self, item: Task, result: AgentResult, ctx: ToolContext) -> RewardResult:  # type: ignore[override]
        trial = self._trials[ctx.task_id]
        if trial.stage is not None:
            await trial.score()
        return trial.reward()


def _with_time(context: RolloutContext, timeout_s: float) -> RolloutContext:
    """The context with the task's own time limit for the agent."""
    settings = context.config.settings
    limits = settings.limits.model_copy(update={"timeout_s": timeout_s})
    config = replace(context.config, settings=settings.model_copy(update={"limits": limits}))
    return replace(context, config=config)


if __name__ == "__main__":
    HarborEnv.cli()
