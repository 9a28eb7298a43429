"""`HermesAgentBaseEnv`: environments whose answers are whole agent rollouts with tools.

An author says what a task is and what a good rollout is worth: `setup`, `get_next_item`, `format_prompt`,
`compute_reward`, and where wanted `evaluate` and `wandb_log`. The rest is here: every rollout of a group runs
the one agent loop in a fresh sandbox, with the same toolsets for the whole group, is recorded in the store
with its reward, and leaves as exact token sequences.

A rollout that broke through no fault of the policy's has no score; a group with one is given up for a reason.
A rollout without exact tokens is written, where a file is written, with its messages and no tokens; it is
never sent to a trainer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from hermes.agent.build import open_writer
from hermes.config.load import Config, load
from hermes.core import Message, Sampling, new_id
from hermes.envs.agent import evaluate as agent_eval
from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.grading import Range, uses_results_directly
from hermes.envs.agent.group import as_group, of_group
from hermes.envs.agent.pending import LoopBoundServer
from hermes.envs.agent.policy import PolicyServers, Rollouts, unprobed
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.rollout import RolloutContext, RolloutSpec, Scored, run_scored
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.base import BaseEnv
from hermes.envs.dataset import load_tasks
from hermes.envs.failures import GroupDroppedError, classify
from hermes.envs.phase import current_phase
from hermes.envs.rewards.result import GraderError
from hermes.envs.servers.config import APIServerConfig, ServerBaseline
from hermes.envs.servers.manager import ServerManager
from hermes.envs.types import Item, ScoredDataGroup
from hermes.errors import ConfigError
from hermes.tools import distributions
from hermes.tools.registry import unusable_toolsets

if TYPE_CHECKING:
    from hermes.store import Writer
    from hermes.tools.base import Tool


class HermesAgentBaseEnv(BaseEnv):
    """The base of agent environments."""

    env_config_cls: ClassVar[Any] = HermesAgentEnvConfig
    config: HermesAgentEnvConfig
    default_toolsets: ClassVar[Sequence[str]] = ("terminal", "file", "web")
    """Offered where the configuration names none."""
    reward_range: ClassVar[Range] = (0.0, 1.0)
    """What compute_reward may return; anything else is a failure of the grader."""

    def __init__(
        self,
        config: HermesAgentEnvConfig,
        server_configs: ServerBaseline | list[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        super().__init__(config, unprobed(server_configs), slurm, testing)
        if uses_results_directly(type(self).compute_reward):
            self.server = cast(ServerManager, LoopBoundServer(self.server))
        self.run_id = f"{self.display_name}-{new_id()}"
        self.rewards_for_log: list[float] = []
        self.turns_for_log: list[int] = []
        self.tool_errors_for_log: list[int] = []
        self.rollout_failures: Counter[str] = Counter()
        """Training rollouts given up, by reason."""
        self._tasks: list[dict[str, Any]] = []
        self._next_task = 0
        self._groups = 0
        self._places = asyncio.Semaphore(self.config.tool_pool_size)
        self._opened: dict[str, Any] = {}

    async def setup(self) -> None:
        """Loads the tasks of `dataset_name`. Override it for tasks of another kind."""
        if self.config.dataset_name is None:
            raise ConfigError(
                f"{self.display_name} has neither a setup method nor a dataset.",
                "Set dataset_name to a JSONL file or a dataset of the hub.",
            )
        self._tasks = await asyncio.to_thread(
            load_tasks, self.config.dataset_name, self.config.dataset_split, self.config.prompt_field
        )

    async def get_next_item(self) -> Item:
        """The next task; after the last comes the first."""
        self._next_task += 1
        return self._tasks[(self._next_task - 1) % len(self._tasks)] if self._tasks else None

    def format_prompt(self, item: Item) -> str:
        """The user message that sets the task."""
        return str(item[self.config.prompt_field])

    @abstractmethod
    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        """What the rollout is worth; may be a plain function. A RewardResult says more than a float."""

    def opening(self, item: Item) -> Sequence[Message]:
        """What is said before the prompt; messages other than the system prompt count as examples."""
        return [Message.system(self.config.system_prompt)] if self.config.system_prompt else []

    def extra_tools(self, item: Item) -> Sequence[Tool]:
        """Tools of the environment's own, made anew for each rollout."""
        return ()

    def workspace_files(self, item: Item) -> Mapping[str, bytes]:
        """What lies in the workspace before the first turn, by path."""
        return {}

    def item_key(self, item: Item) -> str:
        """Names the task in the store: its own id, or a hash of what it holds."""
        if isinstance(item, Mapping) and isinstance(item.get("id"), str | int):
            return str(item["id"])
        text = json.dumps(item, sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()

    def kind(self, item: Item) -> str | None:
        """What kind of task it is; a trainer then tells success by kind."""
        return None

    def token_advantages(self, item: Item, scored: Sequence[Scored]) -> list[list[float]] | None:
        """For each token of each sequence, where more is known than one score a rollout."""
        return None

    async def eval_items(self) -> Sequence[Item]:
        """What `evaluate` measures on: tasks that training never sees."""
        return ()

    async def collect_trajectories(self, item: Item) -> tuple[ScoredDataGroup, list[Item]]:
        """A group of rollouts of one task."""
        self._groups += 1
        toolsets = self.toolsets_for(item)
        work = [self.run_item(item, toolsets=toolsets, sample_index=i) for i in range(self.config.group_size)]
        ended = await asyncio.gather(*work, return_exceptions=True)
        failures = [each for each in ended if isinstance(each, BaseException)]
        for error in failures:
            self._note_failure(error)
        if failures:
            raise of_group(failures[0])
        scored = cast(list[Scored], ended)
        if not self.process_mode:
            self._check_exact(scored)
        self._note(scored)
        group = as_group(scored, self.config, self.kind(item))
        if (advantages := self.token_advantages(item, scored)) is not None:
            group["advantages"] = advantages
        return group, []

    async def run_item(
        self,
        item: Item,
        *,
        toolsets: Sequence[str] | None = None,
        temperature: float | None = None,
        sample_index: int = 0,
    ) -> Scored:
        """One rollout and its reward; raises where there is no reward."""
        chosen = self.toolsets_for(item) if toolsets is None else toolsets
        if isinstance(self.server, LoopBoundServer):
            self.server.settle()
        async with self._places:
            return await run_scored(
                self._workplace(),
                lambda: self._assignment(item, chosen, temperature, sample_index),
                self.compute_reward,
            )

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Runs `eval_items` with the whole agent loop and reports success with its uncertainty."""
        await agent_eval.evaluate(self)

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Adds reward, turns, tool errors and failures of the training rollouts since the last time."""
        metrics = dict(wandb_metrics or {})
        for name, values in (
            ("train/mean_reward", self.rewards_for_log),
            ("train/turns", self.turns_for_log),
            ("train/tool_errors", self.tool_errors_for_log),
        ):
            if values:
                metrics[name] = sum(values) / len(values)
                values.clear()
        metrics |= {f"train/dropped/{reason}": count for reason, count in self.rollout_failures.items()}
        await super().wandb_log(metrics)

    async def close(self) -> None:
        """Lets go of the model's connections and the store."""
        if (policy := self._opened.pop("policy", None)) is not None:
            await policy.close()
        if (writer := self._opened.pop("writer", None)) is not None:
            writer.close()
        await super().close()

    def check_settings(self) -> None:
        """Toolsets that somebody asked for must be there: rollouts without them would be trained on."""
        if self.config.distribution is None and not self.config.enabled_toolsets:
            return
        # Not hermes_config(), which environments may complete with what only their setup knows.
        config, disabled = load(self.config.overrides()), self.config.disabled_toolsets or ()
        names: Sequence[str] = self.config.enabled_toolsets or ()
        if self.config.distribution is not None:
            percents = distributions.resolve(self.config.distribution, config.settings.distributions)
            names = [name for name, percent in percents.items() if percent]
        requested = [name for name in names if name not in disabled]
        if reasons := unusable_toolsets(requested, config.settings, config.environ):
            listing = "; ".join(f"{name} ({why})" for name, why in reasons.items())
            raise ConfigError(
                f"{self.display_name} is to offer toolsets that cannot be used here: {listing}",
                f"configure them, or go on without them: --env.disabled_toolsets {','.join(reasons)}",
            )

    def toolsets_for(self, item: Item) -> tuple[str, ...]:
        """What a whole group is offered: drawn from the distribution, or as configured."""
        disabled = self.config.disabled_toolsets or ()
        if self.config.distribution is not None:
            own = self.hermes_config().settings.distributions
            parts = (self.run_id, self.item_key(item), self._groups)
            return distributions.sample(
                self.config.distribution, seed_parts=parts, configured=own, without=disabled
            )
        chosen = self.config.enabled_toolsets
        names = self.default_toolsets if chosen is None else chosen
        return tuple(name for name in names if name not in disabled)

    def hermes_config(self) -> Config:
        """The user's configuration under this environment's settings."""
        if "config" not in self._opened:
            self._opened["config"] = load(self.config.overrides())
        return cast(Config, self._opened["config"])

    def rehearse(self, policy: Rollouts, home: Path) -> None:
        """From now on rollouts run on a made-up policy and are recorded in another home."""
        self._opened = {"policy": policy, "config": replace(self.hermes_config(), home=home)}

    def _workplace(self) -> RolloutContext:
        policy = self._policy()
        # The trainer refuses sequences that reach its limit.
        longest = self.max_token_len - 1 if self.max_token_len > 0 else None
        return RolloutContext(
            name=self.display_name,
            run_id=self.run_id,
            settings=self.config,
            config=self.hermes_config(),
            writer=self._writer(),
            new_model=lambda: policy.rollout_model(longest),
            reward_range=self.reward_range,
        )

    def _policy(self) -> Rollouts:
        if "policy" not in self._opened:
            self._opened["policy"] = PolicyServers(
                self.hermes_config(),
                self.server.servers,
                self.config.tool_call_parser,
                lambda: self.tokenizer,
            )
        return cast(Rollouts, self._opened["policy"])

    def _writer(self) -> Writer:
        if "writer" not in self._opened:
            self._opened["writer"] = open_writer(self.hermes_config())
        return cast("Writer", self._opened["writer"])

    def _assignment(
        self, item: Item, toolsets: Sequence[str], temperature: float | None, sample_index: int
    ) -> RolloutSpec:
        return RolloutSpec(
            item=item,
            prompt=self.format_prompt(item),
            opening=self.opening(item),
            toolsets=toolsets,
            extra_tools=self.extra_tools(item),
            files=self.workspace_files(item),
            sampling=Sampling(
                temperature=self.config.agent_temperature if temperature is None else temperature,
                max_tokens=self.config.max_token_length,
                extra_body=self.config.extra_body,
            ),
            task_id=self.item_key(item),
            sample_index=sample_index,
            metadata={"phase": current_phase()},
        )

    def _check_exact(self, scored: Sequence[Scored]) -> None:
        """A trainer gets exact tokens or nothing."""
        for each in scored:
            if each.result.exactness.trainable:
                continue
            why = f"a rollout cannot be trained on: {each.result.exactness.inexact}."
            calls = [step.call for step in each.result.trajectory.steps if step.call]
            if all(call.tokens is not None for call in calls):
                raise GroupDroppedError("nothing sampled", why)
            raise ConfigError(
                why, "Serve the model with server_type sglang or vllm, which give tokens and logprobs."
            )

    def _note(self, scored: Sequence[Scored]) -> None:
        if current_phase() != "train":
            return
        self.rewards_for_log += [each.reward.value for each in scored]
        self.turns_for_log += [each.result.turns_used for each in scored]
        self.tool_errors_for_log += [len(each.result.tool_errors) for each in scored]

    def _note_failure(self, error: BaseException) -> None:
        if current_phase() == "train":
            reason = "grader" if isinstance(error, GraderError) else classify(error).reason
            self.rollout_failures[reason] += 1
