"""An environment of verifiers as one of ours: its tasks, its rollouts and its rewards, with our tokens.

A task is its position in the package's taskset or dataset. Training goes through the tasks in order and
begins again after the last one. The tasks of an evaluation are the package's own where it has them
(`load_environment`), else tasks that training never gets: the last ones of a finite taskset, the first ones
of an endless one.

Each agent of an environment has a group of its own: rewards of different roles are not comparable. A sequence
is one context in which tokens were sampled; a rollout whose history was rewritten has several.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import Field

from hermes.compat.verifiers.interpreter import default_python
from hermes.compat.verifiers.worker_process import WorkerProcess
from hermes.config.load import load
from hermes.config.paths import home
from hermes.core import ModelCall, Sampling, new_id
from hermes.core.sequence import RolloutInfo, TrainSequence, to_group
from hermes.core.stats import interval
from hermes.envs.agent.policy import PolicyServers, without_local_probes
from hermes.envs.agent.sequences import build_sequences
from hermes.envs.base import BaseEnv
from hermes.envs.concurrency import gather_or_cancel
from hermes.envs.config import BaseEnvConfig
from hermes.envs.failures import GroupDroppedError
from hermes.envs.modes.evaluate import measure
from hermes.envs.servers.config import APIServerConfig, ServerBaseline
from hermes.envs.types import Item, Message, ScoredDataGroup
from hermes.errors import (
    ConfigError,
    ContextOverflowError,
    HermesError,
    ProviderError,
    SandboxError,
    UsageError,
)
from hermes.gateway.sampled import SampledCall, SampledGateway, SampledRollout
from hermes.models.remote.wire import Dialect, message_to_wire


class VerifiersEnvConfig(BaseEnvConfig):
    package: str = Field(
        default="", description="The environment's package, as verifiers names it: reverse-text."
    )
    args: dict[str, Any] = Field(
        default_factory=dict,
        description="Its own settings: fields of its EnvConfig ({taskset: {…}, agent: {…}}), or the "
        "arguments of its load_environment.",
    )
    verifiers_python: str | None = Field(
        default=None,
        description="The interpreter that has verifiers; none: the one of 'hermes env verifiers install'.",
    )
    harness: str | None = Field(
        default=None,
        description="Harness of roles without one; none: the package's, else null.",
    )
    runtime: str = Field(
        default="subprocess", description="Where harnesses run: subprocess, docker, podman, apptainer …"
    )
    allow_local_commands: bool = Field(
        default=False, description="A harness may run the model's commands on this machine, unisolated."
    )
    max_turns: int = Field(default=16, ge=1, description="Most model calls of a rollout.")
    temperature: float = Field(default=1.0, ge=0, description="Sampling temperature in training.")
    eval_tasks: int = Field(
        default=32, ge=0, description="Tasks held out for evaluation; at most a quarter of a finite taskset."
    )
    eval_temperature: float = Field(default=0.0, ge=0, description="Sampling temperature in evaluations.")
    tool_call_parser: str = Field(
        default="hermes", description="Format of tool calls in the text of servers that return tokens."
    )


_LARGEST_HELD_OUT_SHARE = 4
"""At most one task in so many is held out from training."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task of the package: which split, which position."""

    split: str
    index: int


class VerifiersEnv(BaseEnv):
    """The environment of one package, which a subclass names in `package`; `environment` makes one."""

    name = "verifiers"
    env_config_cls: ClassVar[Any] = VerifiersEnvConfig
    package: ClassVar[str] = ""
    config: VerifiersEnvConfig

    def __init__(
        self,
        config: VerifiersEnvConfig,
        server_configs: ServerBaseline | list[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        super().__init__(config, without_local_probes(server_configs), slurm, testing)
        self.rewards_for_log: list[float] = []
        self._gateway = SampledGateway()
        self._worker: WorkerProcess | None = None
        self._policy: PolicyServers | None = None
        self._train_tasks: int | None = None
        self._eval_tasks = 0
        self._next_task = 0
        self._attempts: Counter[TaskRef] = Counter()

    @classmethod
    def config_init(cls) -> tuple[VerifiersEnvConfig, ServerBaseline]:
        return VerifiersEnvConfig(package=cls.package), ServerBaseline()

    def check_settings(self) -> None:
        if not self.config.package:
            raise ConfigError("no package of verifiers is named.", "Name it with --verifiers PACKAGE.")

    async def setup(self) -> None:
        """Starts the interpreter of verifiers and loads the package in it."""
        config = self.config
        python = Path(config.verifiers_python).expanduser() if config.verifiers_python else default_python()
        name = config.package.replace("/", "-")
        log = home() / "verifiers" / "logs" / f"{name}-{os.getpid()}.log"
        self._worker = WorkerProcess(python, config.package, log)
        await self._worker.start()
        settings = config.model_dump(
            include={"package", "args", "harness", "runtime", "max_turns", "allow_local_commands"}
        )
        description = await self._worker.load(settings)
        self._train_tasks, self._eval_tasks = description["train_tasks"], description["eval_tasks"]
        if self._train_tasks == 0:
            raise ConfigError(f"{config.package} has no tasks.", "Check --env.args.")
        await self._gateway.open()

    async def get_next_item(self) -> TaskRef:
        """The next task of the training split; after the last one, the first again."""
        position, self._next_task = self._next_task, self._next_task + 1
        held_out = self._held_out()
        if self._train_tasks is None:
            return TaskRef("train", held_out + position)
        return TaskRef("train", position % (self._train_tasks - held_out))

    def _held_out(self) -> int:
        """How many tasks of the training split are for evaluations only."""
        if self._eval_tasks:
            return 0
        if self._train_tasks is None:
            return self.config.eval_tasks
        return min(self.config.eval_tasks, self._train_tasks // _LARGEST_HELD_OUT_SHARE)

    def eval_refs(self) -> list[TaskRef]:
        """The tasks of an evaluation."""
        if self._eval_tasks:
            return [TaskRef("eval", index) for index in range(min(self._eval_tasks, self.config.eval_tasks))]
        held_out = self._held_out()
        first = 0 if self._train_tasks is None else self._train_tasks - held_out
        return [TaskRef("train", first + index) for index in range(held_out)]

    async def collect_trajectories(self, item: Item) -> tuple[list[ScoredDataGroup], list[Item]]:
        """The groups of one task, one for each agent that is trained."""
        attempt, self._attempts[item] = self._attempts[item], self._attempts[item] + 1
        rollouts = await gather_or_cancel(
            [
                self._run(item, self.config.temperature, (attempt, sample))
                for sample in range(self.config.group_size)
            ]
        )
        if not self.process_mode:
            self._check_exact(rollouts)
        self.rewards_for_log += [agent.score for rollout in rollouts for agent in rollout if agent.trainable]
        return build_groups(rollouts, self.config.group_size, self.config.include_messages), []

    def _check_exact(self, rollouts: list[list[AgentRollout]]) -> None:
        """ConfigError: the model server gives no tokens, so that nothing here can be trained on."""
        for rollout in rollouts:
            for agent in rollout:
                if agent.trainable and any(call.tokens is None for call in agent.calls):
                    raise ConfigError(
                        f"a rollout cannot be trained on: {build_sequences(agent.calls).inexact}.",
                        "Serve the model with server_type sglang or vllm, which return tokens and logprobs.",
                    )

    async def _run(self, item: TaskRef, temperature: float, attempt: tuple[int, int]) -> list[AgentRollout]:
        """One rollout of a task, with a score for each of its agents."""
        assert self._worker is not None, "setup has run"
        policy = self._open_policy()
        # The trainer rejects sequences that reach its limit.
        limit = self.max_token_len - 1 if self.max_token_len > 0 else None
        sampling = Sampling(
            temperature=temperature, max_tokens=self.config.max_token_length, seed=self._seed(item, attempt)
        )
        calls = SampledRollout(policy.rollout_model(limit), sampling, strict=True)
        if await self._worker.task(item.split, item.index) is None:
            raise ConfigError(f"{self.config.package} has no task {item.index}.", "Lower --env.eval_tasks.")
        params = {
            "split": item.split,
            "index": item.index,
            "model": "policy",
            "sampling": {"temperature": temperature, "max_tokens": self.config.max_token_length},
        }
        with self._gateway.rollout(calls) as path:
            try:
                result = await self._worker.run({**params, "base_url": f"{self._gateway.url}{path}/v1"})
            except GroupDroppedError:
                if calls.failure is not None:  # the environment raised because its model call failed
                    raise model_failure(calls.failure) from None
                raise
        return read_rollout(result, calls)

    def _open_policy(self) -> PolicyServers:
        if self._policy is None:
            self._policy = PolicyServers(
                load(), self.server.servers, self.config.tool_call_parser, lambda: self.tokenizer
            )
        return self._policy

    def _seed(self, item: TaskRef, attempt: tuple[int, int]) -> int | None:
        if self.config.sampling_seed is None:
            return None
        parts = (self.config.sampling_seed, item.split, item.index, *attempt)
        return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big") >> 1

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """One rollout of each held-out task; the mean reward with its uncertainty."""
        refs, started_s = self.eval_refs(), time.time()
        if not refs:
            raise ConfigError(
                f"{self.config.package} has too few tasks to hold some out for an evaluation.",
                "Give it more tasks with --env.args, or data for evaluation.",
            )
        temperature = self.config.eval_temperature
        samples = await measure(
            refs, lambda ref: self._run(ref, temperature, (0, 0)), self.config.max_eval_workers
        )
        scores = [rollout[0].score for rollout in samples.measured]
        mean = interval(scores)
        await self.evaluate_log(
            metrics={
                "eval/mean_reward": mean.mean,
                "eval/mean_reward_low": mean.low,
                "eval/mean_reward_high": mean.high,
                "eval/samples": len(scores),
                "eval/failed_to_run": sum(samples.dropped.values()),
            },
            samples=[
                {"messages": list(rollout[0].messages), "score": rollout[0].score, "parts": rollout[0].parts}
                for rollout in samples.measured
            ],
            start_time=started_s,
            end_time=time.time(),
            generation_parameters={"temperature": temperature},
        )

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        metrics = dict(wandb_metrics or {})
        if self.rewards_for_log:
            metrics["train/mean_reward"] = sum(self.rewards_for_log) / len(self.rewards_for_log)
            self.rewards_for_log.clear()
        await super().wandb_log(metrics)

    async def close(self) -> None:
        """Ends the interpreter of verifiers, then the connections to the model."""
        if self._worker is not None:
            await self._worker.close()
        await self._gateway.close()
        policy, self._policy = self._policy, None
        if policy is not None:
            await policy.close()
        await super().close()


def environment(package: str) -> type[BaseEnv]:
    """The environment class of a package."""
    name = package.rsplit("/", 1)[-1].split("@", 1)[0]
    class_name = f"{name.title().replace('-', '').replace('_', '')}Env"
    return type(class_name, (VerifiersEnv,), {"name": name, "package": package})


_SANDBOX_ERRORS = ("SandboxError", "TunnelError", "InterceptionError", "ToolsetError", "HarnessError")


@dataclass(frozen=True, slots=True)
class AgentRollout:
    """One agent's part of a rollout, with its reward."""

    agent: str
    trainable: bool
    score: float
    parts: Mapping[str, float]
    stop: str | None
    calls: tuple[ModelCall, ...]
    messages: tuple[dict[str, Any], ...]


def read_rollout(result: Mapping[str, Any], calls: SampledRollout) -> list[AgentRollout]:
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


def _agent_rollout(trace: Mapping[str, Any], calls: SampledRollout) -> AgentRollout:
    if trace["score"] is None:
        if trace["timed_out"]:
            raise GroupDroppedError("timeout", "a rollout reached a time limit of its environment")
        if calls.failure is not None:
            raise model_failure(calls.failure)
        raise GroupDroppedError("grader", "a rollout ended without a reward")
    agent_calls = [call for call in calls.calls if call.session == trace["session"]]
    return AgentRollout(
        agent=trace["agent"],
        trainable=trace["trainable"],
        score=float(trace["score"]),
        parts=trace["parts"],
        stop=trace["stop"],
        calls=tuple(call.reply.call for call in agent_calls),
        messages=_messages(agent_calls[-1]) if agent_calls else (),
    )


def _messages(last: SampledCall) -> tuple[dict[str, Any], ...]:
    """The conversation as the last call saw it, with its answer."""
    conversation = (*last.messages, last.reply.message)
    return tuple(message_to_wire(message, Dialect(send_reasoning=True)) for message in conversation)


def _failure(errors: Sequence[Mapping[str, str]], calls: SampledRollout) -> HermesError:
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
    """Returns the sampling parameters of a sequence; a sequence with several is not trained on."""
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
