"""How much of everything a quickstart does: enough to learn on two CPU cores, less for a test, more on a GPU.

The figures were found by trying; docs/quickstart.md says what was tried. The warm start is small on purpose:
it teaches the form of a call, and reinforcement learning the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hermes.agent.examples import examples_for
from hermes.core import Message, Role

ENVIRONMENT = "calculator"
TOOLSETS = ("math",)
MODEL = "hermes/smollm2"


@dataclass(frozen=True, slots=True)
class QuickstartRecipe:
    """What one quickstart does."""

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
    """What reinforcement learning is paid for: right answers only, or also part of the way."""
    at_once: int = 128
    """Rollouts in flight."""
    lease_s: float = 600.0
    """Time limit of a batch's lease, which a live trainer renews; tests make it short."""

    @property
    def batch_size(self) -> int:
        """Rollouts a step."""
        return self.groups * self.group_size


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
"""For a CPU that takes half as long again as one with instructions for bf16."""
SHORTER = replace(CPU, tasks=40, eval_tasks=24, sft_batch=12, rl_steps=5, groups=5)
"""For one that takes twice as long."""
SHORTEST = replace(SHORTER, rl_steps=4, groups=4)
"""For all that are slower still."""
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
    """The recipes that a machine may be given, largest first; its pace decides where there are several."""
    if fast:
        return (FAST,)
    if cuda:
        return (CUDA,)
    return (CPU,) if full else (CPU, SHORT, SHORTER, SHORTEST)


def examples() -> Sequence[Message]:
    """Three whole exchanges, with answers as the environment wants them: the number alone."""
    shown = examples_for(MODEL, TOOLSETS)
    return [
        Message.assistant(message.content.removeprefix("The answer is ").removesuffix("."))
        if message.role is Role.ASSISTANT and message.content
        else message
        for message in shown
    ]
