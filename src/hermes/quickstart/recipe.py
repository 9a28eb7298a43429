"""The recipes of a quickstart: enough to learn on two CPU cores, less for a test, more on a GPU.

The numbers were found by experiments, which docs/quickstart.md describes. The warm start is small on purpose:
it teaches the format of a tool call, and reinforcement learning the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hermes.agent.examples import examples_for
from hermes.core import Message, Role
from hermes.quickstart.act import MODEL
from hermes.quickstart.pace import Cost

ENVIRONMENT = "calculator"
TOOLSETS = ("math",)
_START_S = 25.0
"""Starting the processes of all stages."""
_SAMPLED = Cost(0.07, 0.2)
"""One rollout that is only sampled: evaluation and generation."""
_SFT_ROW = Cost(0.0, 0.59)
_GRPO_ROLLOUT = Cost(0.08, 0.54)


@dataclass(frozen=True, slots=True)
class QuickstartRecipe:
    """The sizes and learning rates of one quickstart."""

    tasks: int
    """Tasks that the base model is given with examples, to make the warm start's data."""
    eval_tasks: int
    """Held-out tasks, each tried once greedily and once at temperature 1."""
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
    environments: int = 1
    """Processes that make the rollouts: one keeps two cores busy, and is far too slow for a GPU."""
    rank: int = 32
    max_tokens: int = 64
    """Longest answer of one model call."""
    two_step_share: float = 0.0
    """Share of sums that take two calculations."""
    reward_mode: Literal["binary", "shaped"] = "binary"
    """The reward of reinforcement learning: for right answers only, or with partial credit."""
    at_once: int = 128
    """Rollouts in flight."""
    lease_s: float = 600.0
    """Time limit of a batch's lease, which a live trainer renews; tests make it short."""

    @property
    def batch_size(self) -> int:
        """Rollouts a step."""
        return self.groups * self.group_size

    def estimate_s(self, pace_s: float) -> float:
        """How long the whole recipe takes at this pace."""
        sampled = 6 * self.eval_tasks + self.tasks  # three evaluations, greedy and at temperature 1
        return (
            _START_S
            + sampled * _SAMPLED.at(pace_s)
            + self.sft_steps * self.sft_batch * _SFT_ROW.at(pace_s)
            + self.rl_steps * self.batch_size * _GRPO_ROLLOUT.at(pace_s)
        )

    @property
    def size(self) -> str:
        return (
            f"{self.eval_tasks} held-out tasks and {self.rl_steps} steps of {self.groups} × "
            f"{self.group_size} rollouts"
        )


CPU = QuickstartRecipe(
    tasks=64,
    eval_tasks=48,
    sft_steps=4,
    sft_batch=16,
    sft_rate=1e-3,
    rl_steps=7,
    group_size=8,
    groups=8,
    rl_rate=5e-4,
)
SHORT = replace(CPU, tasks=48, eval_tasks=32, sft_batch=14, rl_steps=6, groups=6)
"""For a CPU that takes 1.5 times as long as one with bf16 instructions."""
SHORTER = replace(CPU, tasks=40, eval_tasks=24, sft_batch=12, rl_steps=5, groups=5)
"""For a CPU that takes twice as long."""
SHORTEST = replace(SHORTER, rl_steps=4, groups=4)
"""For any slower CPU."""
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
    max_tokens=48,
    reward_mode="shaped",
)
CUDA = QuickstartRecipe(
    tasks=512,
    eval_tasks=512,
    sft_steps=4,
    sft_batch=16,
    sft_rate=1e-3,
    rl_steps=20,
    group_size=16,
    groups=32,
    rl_rate=3e-4,
    environments=8,
    two_step_share=0.3,
    at_once=512,
)


def choose(*, fast: bool, cuda: bool, full: bool = False) -> tuple[QuickstartRecipe, ...]:
    """The recipes for a machine, largest first; if there are several, its pace decides."""
    if fast:
        return (FAST,)
    if cuda:
        return (CUDA,)
    return (CPU,) if full else (CPU, SHORT, SHORTER, SHORTEST)


def examples() -> Sequence[Message]:
    """Three whole exchanges, with answers in the format of the environment: the number alone."""
    messages = examples_for(MODEL, TOOLSETS)
    return [
        Message.assistant(message.content.removeprefix("The answer is ").removesuffix("."))
        if message.role is Role.ASSISTANT and message.content
        else message
        for message in messages
    ]
