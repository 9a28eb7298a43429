"""The base of the built-in environments: items from a seeded generator, with a held-out split.

A subclass defines where its items come from (`generate`), how an item becomes a prompt (`format_prompt`) and
how a rollout is graded (`grade`). Items are frozen and have a `key`; the key decides whether an item is
trained on or held out, so the same seed gives the same items and no seed mixes the two splits. Without a seed
in the configuration, each training run has items of its own.

A curriculum over levels of difficulty: harder tasks when those of the present level succeed. Pure.

Scores are recorded as groups end; the level changes only between training steps, so it does not depend on the
order in which the groups of a batch arrived. It never falls: a policy that has learned easy tasks keeps
seeing them, mixed with the harder ones.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import statistics
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal

from pydantic import Field

from hermes.core import Role, ToolCall, content_hash
from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.config import BaseEnvConfig
from hermes.envs.rewards.combine import ToolUse
from hermes.envs.rewards.result import RewardResult
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.tasks.split import Keyed, Split
from hermes.errors import ConfigError

_THRESHOLD = 0.6
"""Mean score of the highest level at which the next level opens."""
_LEAST_GROUPS = 4
"""Groups of the highest level that the mean is taken of."""


class Curriculum:
    def __init__(self, levels: int, level: int = 0) -> None:
        """`levels`: how many there are. `level`: the highest that is open, counted from 0."""
        self._levels = levels
        self.level = min(level, levels - 1)
        self._means: list[float] = []
        """The means of the groups of the highest open level, since it was opened."""

    def record(self, level: int, scores: Sequence[float]) -> None:
        """A group of this level has these scores, between 0 and 1."""
        if level == self.level:
            self._means.append(statistics.fmean(scores))

    def advance(self) -> bool:
        """Between two steps: opens the next level if the highest open one succeeds; whether it did."""
        succeeds = len(self._means) >= _LEAST_GROUPS and statistics.fmean(self._means) >= _THRESHOLD
        if not succeeds or self.level + 1 >= self._levels:
            if len(self._means) >= 4 * _LEAST_GROUPS:
                self._means.clear()  # the policy has changed since
            return False
        self.level += 1
        self._means.clear()
        return True


logger = logging.getLogger(__name__)


class GeneratedEnvConfig(HermesAgentEnvConfig):
    tokenizer_name: str = Field(default="hermes/smollm2", description="The policy's tokenizer.")
    seed: int | None = Field(
        default=None,
        description="Decides which items are drawn, and their order. Default: held-out items as with 0; "
        "training items as with a number that serve draws for each run and tells nobody.",
    )
    train_size: int = Field(default=2000, ge=1, description="Distinct items to train on.")
    eval_size: int = Field(default=100, ge=1, description="Held-out items to evaluate on.")
    curriculum: bool = Field(
        default=False, description="Begin with the easiest items; harder ones follow when those succeed."
    )


class ShapedEnvConfig(GeneratedEnvConfig):
    reward_mode: Literal["binary", "shaped"] = Field(
        default="binary",
        description="binary: 1 for a success, else 0. shaped: partial credit for partial progress, "
        "for policies that hardly ever succeed.",
    )


class GeneratedEnv(HermesAgentBaseEnv):
    """The base of the built-in environments."""

    env_config_cls: ClassVar[Any] = GeneratedEnvConfig
    config: GeneratedEnvConfig
    default_toolsets: ClassVar[Sequence[str]] = ()
    _curriculum: Curriculum | None = None

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, Any]:
        """The environment's own defaults, with the engine on this machine."""
        server = APIServerConfig(
            base_url="http://localhost:8001/v1", model_name="hermes/smollm2", server_type="sglang"
        )
        return cls.env_config_cls(), [server]

    @abstractmethod
    def generate(self, split: Split) -> Iterator[Any]:
        """Distinct items of a split, in the order the seed decides."""

    def seed_of(self, split: Split) -> int:
        """The configured seed. Without one, a policy that knows the generator cannot draw its items again."""
        if self.config.seed is not None:
            return self.config.seed
        return self.secret_seed if split is Split.TRAIN and self.secret_seed is not None else 0

    async def setup(self) -> None:
        self._train, self._eval = await asyncio.to_thread(self._load)
        self._order: list[Any] = []
        self._epoch = 0
        if self.config.curriculum:
            self._curriculum = self._new_curriculum()

    def _load(self) -> tuple[list[Any], list[Any]]:
        train = list(islice(self.generate(Split.TRAIN), self.config.train_size))
        held_out = list(islice(self.generate(Split.EVAL), self.config.eval_size))
        if not train or not held_out:
            raise ConfigError(
                f"{self.display_name} has no items to train or evaluate on.", "Check its settings."
            )
        return train, held_out

    async def get_next_item(self) -> Any:
        """Each item once per epoch; from the second epoch on in a shuffled order. With a curriculum an epoch
        has the items of the levels that are open."""
        if not self._order:
            open_level = math.inf if self._curriculum is None else self._curriculum.level
            self._order = [item for item in self._train if self.level(item) <= open_level]
            if self._epoch:
                random.Random(f"{self.seed_of(Split.TRAIN)} {self._epoch}").shuffle(self._order)
            self._order.reverse()
            self._epoch += 1
        return self._order.pop()

    def level(self, item: Any) -> int:
        """How hard the item is, counted from 0, for a curriculum."""
        return 0

    def _new_curriculum(self, level: int = 0) -> Curriculum:
        levels = [self.level(item) for item in self._train]
        return Curriculum(1 + max(levels), max(level, min(levels)))

    def on_group(self, item: Any, scores: Sequence[float]) -> None:
        if self._curriculum is not None:
            self._curriculum.record(self.level(item), scores)

    def on_step(self, step: int) -> None:
        """Opens the next level of the curriculum if the present one succeeds; its items come at once."""
        if self._curriculum is not None and self._curriculum.advance():
            logger.info("step %d: the curriculum goes on to level %d", step, self._curriculum.level)
            self._order = []

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        level = {} if self._curriculum is None else {"curriculum_level": self._curriculum.level}
        super().save_checkpoint(step, {**(data or {}), **level} or None)

    def load_checkpoint(self) -> None:
        super().load_checkpoint()
        level = getattr(self, "curriculum_level", None)
        if self._curriculum is not None and isinstance(level, int):
            self._curriculum = self._new_curriculum(level)

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        level = {} if self._curriculum is None else {"train/curriculum_level": self._curriculum.level}
        await super().wandb_log({**(wandb_metrics or {}), **level})

    @abstractmethod
    async def grade(self, item: Any, result: AgentResult, ctx: ToolContext) -> RewardResult:
        """The reward of a rollout, with its parts and the reason."""

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Any:
        return await self.grade(item, result, ctx)

    async def eval_items(self) -> Sequence[Any]:
        return self._eval

    def item_key(self, item: Keyed) -> str:
        return content_hash(item.key)


def tool_calls(result: AgentResult) -> list[ToolCall]:
    """The assistant's calls, in order."""
    return [
        call
        for message in result.trajectory.messages
        if message.role is Role.ASSISTANT
        for call in message.tool_calls
    ]


def tool_uses(result: AgentResult) -> list[ToolUse]:
    """The calls that were executed, and whether each succeeded."""
    return [
        ToolUse(step.result.name, step.result.ok)
        for step in result.trajectory.steps
        if step.result is not None
    ]
