"""The recipes of a quickstart: enough to learn on two CPU cores, less for a test, more on a GPU.

The numbers were found by experiments, which docs/quickstart.md describes. The warm start is small on purpose:
it teaches the format of a tool call, and reinforcement learning the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hermes.agent.examples import examples_for
from hermes.core import JSONObject, Message, Role
from hermes.quickstart.act import MODEL
from hermes.quickstart.pace import Cost

ENVIRONMENT = "calculator"
TOOLSETS = ("math",)
_EXAMPLE_MESSAGES = 2 * 4
"""Question, call, result and answer."""
_START_S = 45.0
"""Starting the processes of all stages."""
_SAMPLED = Cost(0.0, 0.23)
"""One rollout that is only sampled: evaluation and generation."""
_SFT_ROW = Cost(0.0, 0.38)
_GRPO_ROLLOUT = Cost(0.0, 0.6)
"""One rollout that is trained on, with its share of the step's proof of training."""


@dataclass(frozen=True, slots=True)
class QuickstartRecipe:
    """The sizes and learning rates of one quickstart."""

    tasks: int
    """Tasks that the base model is given with examples, to make the warm start's data."""
    eval_tasks: int
    """Held-out tasks of each evaluation."""
    sft_steps: int
    sft_batch: int
    """Sequences a step."""
    sft_rate: float
    rl_steps: int
    group_size: int
    """Rollouts of one task."""
    groups: int
    """Tasks a step."""
    rl_rate: float
    reward_mode: Literal["binary", "shaped"] = "binary"
    """For right answers only, or with partial credit."""
    environments: int = 1
    """Processes that make the rollouts: one keeps two cores busy, and is far too slow for a GPU."""
    rank: int = 16
    max_tokens: int = 48
    """Longest answer of one model call."""
    two_step_share: float = 0.0
    """Share of sums that take two calculations."""
    at_once: int = 64
    """Rollouts in flight."""
    engine_gib: float | None = 2.5
    """Memory of the engine on a CPU."""
    kv_gib: float | None = 0.45
    """The part of it for keys and values."""

    @property
    def batch_size(self) -> int:
        """Rollouts a step."""
        return self.groups * self.group_size

    def estimate_s(self, pace_s: float) -> float:
        """How long the whole recipe takes at this pace."""
        sampled = 3 * self.eval_tasks + self.tasks
        return (
            _START_S
            + sampled * _SAMPLED.at(pace_s)
            + self.sft_steps * self.sft_batch * _SFT_ROW.at(pace_s)
            + self.rl_steps * self.batch_size * _GRPO_ROLLOUT.at(pace_s)
        )

    @property
    def size(self) -> str:
        return f"{self.rl_steps} steps of {self.groups} × {self.group_size} rollouts"

    def run_values(self, seed: int) -> JSONObject:
        """The fields of the RL run."""
        return {
            "env.seed": seed,
            "env.two_step_share": self.two_step_share,
            "env.reward_mode": self.reward_mode,
            "env.max_agent_turns": 4 if self.two_step_share else 2,
            "env.max_token_length": self.max_tokens,
            "env.eval_size": self.eval_tasks,
            "env.max_eval_workers": self.at_once,
            "env.group_size": self.group_size,
            "env.batch_size": self.batch_size,
            "env.max_num_workers": max(1, self.groups // self.environments),
            "env.tool_pool_size": self.at_once,
            "env.total_steps": self.rl_steps,
            "env.steps_per_eval": self.rl_steps,
            "env.use_wandb": False,
            "tinker.seed": seed,
            "tinker.learning_rate": self.rl_rate,
            "tinker.schedule": "linear",
            "tinker.save_checkpoint_interval": self.rl_steps,
            "tinker.env_replicas": self.environments,
            "tinker.engine_memory_gib": self.engine_gib,
            "tinker.engine_kv_gib": self.kv_gib,
        }


CPU = QuickstartRecipe(
    tasks=28,
    eval_tasks=24,
    sft_steps=3,
    sft_batch=12,
    sft_rate=1e-3,
    rl_steps=16,
    group_size=4,
    groups=4,
    rl_rate=3e-4,
)
FAST = QuickstartRecipe(
    tasks=8,
    eval_tasks=4,
    sft_steps=2,
    sft_batch=4,
    sft_rate=1e-3,
    rl_steps=2,
    group_size=4,
    groups=2,
    rl_rate=4e-4,
    reward_mode="shaped",
)
CUDA = QuickstartRecipe(
    tasks=256,
    eval_tasks=256,
    sft_steps=4,
    sft_batch=16,
    sft_rate=1e-3,
    rl_steps=20,
    group_size=16,
    groups=16,
    rl_rate=3e-4,
    environments=4,
    two_step_share=0.3,
    at_once=256,
    engine_gib=None,
    kv_gib=None,
)


def choose(*, fast: bool, cuda: bool) -> QuickstartRecipe:
    """The recipe for a machine."""
    if fast:
        return FAST
    return CUDA if cuda else CPU


def examples() -> Sequence[Message]:
    """Two whole exchanges, with answers in the format of the environment: the number alone."""
    messages = examples_for(MODEL, TOOLSETS)[:_EXAMPLE_MESSAGES]
    return [
        Message.assistant(message.content.removeprefix("The answer is ").removesuffix("."))
        if message.role is Role.ASSISTANT and message.content
        else message
        for message in messages
    ]
