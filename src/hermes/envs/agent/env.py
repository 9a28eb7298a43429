"""`HermesAgentBaseEnv`: environments whose answers are whole agent rollouts with tools.

An author defines the tasks and the reward of a rollout: `setup`, `get_next_item`, `format_prompt`,
`compute_reward`, and optionally `evaluate` and `wandb_log`. The class does the rest: every rollout of a group
runs the agent loop in a fresh sandbox, with the same toolsets for the whole group, is recorded in the store
with its reward, and is returned as exact token sequences.

A rollout that failed through no fault of the policy has no score, and its group is dropped with a reason. A
rollout without exact tokens is never sent to a trainer; in the process mode it is written with its messages
and no tokens.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from hermes.agent.build import open_writer
from hermes.config.environment import RL_POLICY_VARIABLE, RL_RUN_VARIABLE
from hermes.config.load import Config, load
from hermes.core import Message, Sampling, new_id
from hermes.core.texts import Texts
from hermes.envs.agent import evaluate as agent_evaluate
from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.grading import Range, uses_results_directly
from hermes.envs.agent.group import build_group, group_error
from hermes.envs.agent.pending import LoopBoundServer
from hermes.envs.agent.policy import PolicyServers, RolloutPolicy, without_local_probes
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.rollout import (
    MAX_ATTEMPTS,
    RolloutContext,
    RolloutSpec,
    ScoredRollout,
    finished_rollout,
    run_scored,
)
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.base import BaseEnv
from hermes.envs.dataset import load_tasks
from hermes.envs.failures import GroupDroppedError, classify
from hermes.envs.phase import current_phase
from hermes.envs.rewards.result import GraderError
from hermes.envs.servers.config import APIServerConfig, ServerBaseline
from hermes.envs.servers.manager import ServerManager
from hermes.envs.tasks.split import pass_order
from hermes.envs.types import Item, ScoredDataGroup
from hermes.errors import ConfigError, NothingToEvaluateError
from hermes.tools import distributions
from hermes.tools.registry import unusable_toolsets

if TYPE_CHECKING:
    from hermes.store import Writer
    from hermes.tools.base import Tool, Workbench


@dataclass
class AgentResources:
    """The resources that rollouts share, opened on first use and closed at the end of the run."""

    config: Config | None = None
    policy: RolloutPolicy | None = None
    writer: Writer | None = None
    finished_rollouts: dict[str, Any] = field(default_factory=dict)
    """Finished rollouts of `compat.agent_loop` whose sandbox is still open, by task id."""


class HermesAgentBaseEnv(BaseEnv):
    """The base of agent environments."""

    env_config_cls: ClassVar[Any] = HermesAgentEnvConfig
    config: HermesAgentEnvConfig
    default_toolsets: ClassVar[Sequence[str]] = ("terminal", "file", "web")
    """Offered if the configuration names none."""
    reward_range: ClassVar[Range] = (0.0, 1.0)
    """The types that compute_reward may return; anything else is a failure of the grader."""
    no_eval_items_hint: ClassVar[str] = "Override eval_items, or evaluate."
    """The hint if there is no task to evaluate."""

    def __init__(
        self,
        config: HermesAgentEnvConfig,
        server_configs: ServerBaseline | list[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        super().__init__(config, without_local_probes(server_configs), slurm, testing)
        if uses_results_directly(type(self).compute_reward):
            self.server = cast(ServerManager, LoopBoundServer(self.server))
        policy = os.environ.get(RL_POLICY_VARIABLE)
        evaluation = f"{policy}-eval" if policy else f"{self.display_name}-{new_id()}"
        self.run_id = os.environ.get(RL_RUN_VARIABLE) or evaluation
        self.rewards_for_log: list[float] = []
        self.turns_for_log: list[int] = []
        self.tool_errors_for_log: list[int] = []
        self.forbidden_for_log: list[int] = []
        self.rollout_failures: Counter[str] = Counter()
        """Failed training rollouts, by reason."""
        self._tasks: Sequence[Any] = ()
        self._held_out_tasks: Sequence[Any] = ()
        self._next_task = 0
        self._groups = 0
        self._attempts: Counter[str] = Counter()
        """Groups that were begun, by the key of their task."""
        self._rollout_slots = asyncio.Semaphore(self.config.tool_pool_size)
        self._resources = AgentResources()

    async def setup(self) -> None:
        """Loads the tasks of `dataset_name`. Override it for tasks of another kind."""
        if self.config.dataset_name is None:
            raise ConfigError(
                f"{self.display_name} has neither a setup method nor a dataset.",
                "Set dataset_name to a JSONL file or a dataset on the hub.",
            )
        self._tasks = await asyncio.to_thread(
            load_tasks, self.config.dataset_name, self.config.dataset_split, self.config.prompt_field
        )

    async def get_next_item(self) -> Item:
        """The next task; all come once in each pass, in the order that `pass_order` gives."""
        if not self._tasks:
            return None
        pass_number, position = divmod(self._next_task, len(self._tasks))
        self._next_task += 1
        if self.config.shuffle:
            position = pass_order(len(self._tasks), pass_number, self.config.sampling_seed)[position]
        return self._tasks[position]

    def format_prompt(self, item: Item) -> str:
        """The user message that states the task."""
        return str(item[self.config.prompt_field])

    @abstractmethod
    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        """The reward of a rollout; may be a plain function. A RewardResult carries more than a float."""

    def opening(self, item: Item) -> Sequence[Message]:
        """Messages before the prompt; those other than the system prompt count as examples."""
        return [Message.system(self.config.system_prompt)] if self.config.system_prompt else []

    def extra_tools(self, item: Item) -> Sequence[Tool]:
        """Additional tools, created for each rollout."""
        return ()

    def workspace_files(self, item: Item) -> Mapping[str, bytes]:
        """Files in the workspace before the first turn, by path."""
        return {}

    def item_key(self, item: Item) -> str:
        """The task's id in the store: its field `id`, or a hash of its content."""
        if isinstance(item, Mapping) and isinstance(item.get("id"), str | int):
            return str(item["id"])
        text = json.dumps(item, sort_keys=True, default=repr)
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()

    def kind(self, item: Item) -> str | None:
        """The kind of the task; a trainer then reports success by kind."""
        return None

    def token_advantages(self, item: Item, scored: Sequence[ScoredRollout]) -> list[list[float]] | None:
        """An advantage for each token of each sequence; None: the trainer derives them from the scores."""
        return None

    def on_group(self, item: Item, scores: Sequence[float]) -> None:
        """Called with the rewards of each complete training group, in the order in which groups end."""

    async def eval_items(self) -> Sequence[Item]:
        """The tasks that `evaluate` measures: held out from training."""
        return self._held_out_tasks

    async def collect_trajectories(self, item: Item) -> tuple[ScoredDataGroup, list[Item]]:
        """A group of rollouts of one task."""
        self._groups += 1
        key = self.item_key(item)
        attempt = self._attempts[key]
        self._attempts[key] += 1
        toolsets = self.toolsets_for(item)
        results = await asyncio.gather(
            *(
                self.run_item(item, toolsets=toolsets, sample_index=index, attempt=attempt)
                for index in range(self.config.group_size)
            ),
            return_exceptions=True,
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            self._log_failure(error)
        if errors:
            raise group_error(errors[0])
        rollouts = cast(list[ScoredRollout], results)
        if not self.process_mode:
            self._check_exact(rollouts)
        self._log_rollouts(rollouts)
        if current_phase() == "train":
            self.on_group(item, [rollout.reward.value for rollout in rollouts])
        group = build_group(rollouts, self.config, self.kind(item))
        if (advantages := self.token_advantages(item, rollouts)) is not None:
            group["advantages"] = advantages
        return group, []

    async def run_item(
        self,
        item: Item,
        *,
        toolsets: Sequence[str] | None = None,
        temperature: float | None = None,
        sample_index: int = 0,
        attempt: int = 0,
        texts: Texts | None = None,
        attempts: int = MAX_ATTEMPTS,
    ) -> ScoredRollout:
        """One rollout and its reward; raises if there is no reward. `attempt`: earlier groups of the item.
        `texts`: those of a policy, in place of the configuration's. `attempts`: also after failures."""
        offered = self.toolsets_for(item) if toolsets is None else toolsets
        if isinstance(self.server, LoopBoundServer):
            self.server.bind_to_running_loop()
        async with self._rollout_slots:
            context = self.rollout_context()
            if texts is not None:
                context = replace(context, config=replace(context.config, texts=texts))
            return await run_scored(
                context,
                lambda: self._rollout_spec(item, offered, temperature, sample_index, attempt),
                self.compute_reward,
                self.run_rollout,
                attempts,
            )

    def run_rollout(
        self, context: RolloutContext, spec: RolloutSpec
    ) -> AbstractAsyncContextManager[tuple[AgentResult, Workbench]]:
        """Runs the agent to its end; see `agent.rollout.finished_rollout`."""
        return finished_rollout(context, spec)

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Runs `eval_items` with the whole agent loop and reports success with its uncertainty."""
        items = list(await self.eval_items())
        if not items:
            raise NothingToEvaluateError(
                f"{self.display_name} has no tasks to evaluate.", self.no_eval_items_hint
            )
        temperature, started_s = agent_evaluate.TEMPERATURE, time.time()
        evaluation = await agent_evaluate.evaluate(
            items,
            lambda item: self.run_item(item, temperature=temperature),
            self.format_prompt,
            self.config.max_eval_workers,
        )
        await self.evaluate_log(
            metrics=evaluation.metrics,
            samples=evaluation.samples,
            start_time=started_s,
            end_time=time.time(),
            generation_parameters={"temperature": temperature},
        )

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Adds reward, turns, tool errors and failures of the training rollouts since the last report."""
        metrics = dict(wandb_metrics or {})
        for name, values in (
            ("train/mean_reward", self.rewards_for_log),
            ("train/turns", self.turns_for_log),
            ("train/tool_errors", self.tool_errors_for_log),
            ("train/forbidden_paths", self.forbidden_for_log),
        ):
            if values:
                metrics[name] = sum(values) / len(values)
                values.clear()
        metrics |= {f"train/dropped/{reason}": count for reason, count in self.rollout_failures.items()}
        await super().wandb_log(metrics)

    async def close(self) -> None:
        """Closes the connections to the model and the store."""
        resources = self._resources
        policy, resources.policy = resources.policy, None
        if policy is not None:
            await policy.close()
        writer, resources.writer = resources.writer, None
        if writer is not None:
            writer.close()
        await super().close()

    def check_settings(self) -> None:
        """Requested toolsets must be usable: otherwise rollouts without them would be trained on."""
        if self.config.distribution is None and not self.config.enabled_toolsets:
            return
        # Not hermes_config(): some environments complete it in their setup, which has not run yet.
        config, disabled = load(self.config.overrides()), self.config.disabled_toolsets or ()
        names: Sequence[str] = self.config.enabled_toolsets or ()
        if self.config.distribution is not None:
            percents = distributions.resolve(self.config.distribution, config.settings.distributions)
            names = [name for name, percent in percents.items() if percent]
        requested = [name for name in names if name not in disabled]
        if reasons := unusable_toolsets(requested, config.settings, config.environ):
            listing = "; ".join(f"{name} ({reason})" for name, reason in reasons.items())
            raise ConfigError(
                f"{self.display_name} is configured to offer toolsets that cannot be used: {listing}",
                f"configure them, or run without them: --env.disabled_toolsets {','.join(reasons)}",
            )

    def toolsets_for(self, item: Item) -> tuple[str, ...]:
        """The toolsets of a whole group: drawn from the distribution, or as configured."""
        disabled = self.config.disabled_toolsets or ()
        if self.config.distribution is not None:
            user_defined = self.hermes_config().settings.distributions
            seeds = (self.run_id, self._groups)
            if self.config.sampling_seed is not None:
                seeds = (str(self.config.sampling_seed), self._attempts[self.item_key(item)])
            seed_parts = (self.item_key(item), *seeds)
            return distributions.sample(
                self.config.distribution, seed_parts=seed_parts, configured=user_defined, without=disabled
            )
        enabled = self.config.enabled_toolsets
        names = self.default_toolsets if enabled is None else enabled
        return tuple(name for name in names if name not in disabled)

    def hermes_config(self) -> Config:
        """The user's configuration, overridden by this environment's settings."""
        if self._resources.config is None:
            self._resources.config = replace(load(self.config.overrides()), texts=self.config.texts)
        return self._resources.config

    def rehearse(self, policy: RolloutPolicy, home: Path) -> None:
        """From now on rollouts run on a scripted policy and are recorded in another home."""
        self._resources = AgentResources(replace(self.hermes_config(), home=home), policy)

    def rollout_context(self) -> RolloutContext:
        """The context that all rollouts share."""
        policy = self._policy()
        # The trainer rejects sequences that reach its limit.
        max_tokens = self.max_token_len - 1 if self.max_token_len > 0 else None
        return RolloutContext(
            name=self.display_name,
            run_id=self.run_id,
            settings=self.config,
            config=self.hermes_config(),
            writer=self._writer(),
            new_model=lambda: policy.rollout_model(max_tokens),
            reward_range=self.reward_range,
        )

    def _policy(self) -> RolloutPolicy:
        if self._resources.policy is None:
            self._resources.policy = PolicyServers(
                self.hermes_config(),
                self.server.servers,
                self.config.tool_call_parser,
                lambda: self.tokenizer,
            )
        return self._resources.policy

    def _writer(self) -> Writer:
        if self._resources.writer is None:
            self._resources.writer = open_writer(self.hermes_config())
        return self._resources.writer

    def _rollout_spec(
        self,
        item: Item,
        toolsets: Sequence[str],
        temperature: float | None,
        sample_index: int,
        attempt: int,
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
                seed=self._seed(item, attempt, sample_index),
            ),
            task_id=self.item_key(item),
            sample_index=sample_index,
            metadata={"phase": current_phase()},
        )

    def _seed(self, item: Item, attempt: int, sample_index: int) -> int | None:
        """The sampling seed of a rollout: of the run, the task, how often it was tried, and the sample."""
        if self.config.sampling_seed is None:
            return None
        parts = (self.config.sampling_seed, self.item_key(item), attempt, sample_index)
        return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big") >> 1

    def _check_exact(self, rollouts: Sequence[ScoredRollout]) -> None:
        """Raises if a rollout has no exact tokens: it cannot be sent to a trainer."""
        for rollout in rollouts:
            if rollout.result.exactness.trainable:
                continue
            problem = f"a rollout cannot be trained on: {rollout.result.exactness.inexact}."
            calls = [step.call for step in rollout.result.trajectory.steps if step.call]
            if all(call.tokens is not None for call in calls):
                raise GroupDroppedError("nothing sampled", problem)
            raise ConfigError(
                problem,
                "Serve the model with server_type sglang or vllm, which return tokens and logprobs.",
            )

    def _log_rollouts(self, rollouts: Sequence[ScoredRollout]) -> None:
        if current_phase() != "train":
            return
        self.rewards_for_log += [rollout.reward.value for rollout in rollouts]
        self.turns_for_log += [rollout.result.turns_used for rollout in rollouts]
        self.tool_errors_for_log += [len(rollout.result.tool_errors) for rollout in rollouts]
        self.forbidden_for_log += [len(rollout.forbidden) for rollout in rollouts]

    def _log_failure(self, error: BaseException) -> None:
        if current_phase() == "train":
            reason = "grader" if isinstance(error, GraderError) else classify(error).reason
            self.rollout_failures[reason] += 1
