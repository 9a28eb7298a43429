"""reward_function: prompts from a file, scored by a function of yours. No class has to be written.

    hermes rl start --prompts tasks.jsonl --reward my.py:score --toolsets terminal,file
    hermes env process reward_function --env.dataset_name tasks.jsonl --env.reward my.py:score

Prompts and function are those of `hermes batch --dataset-file … --reward …`: each row has a `prompt`, and may
have `id`, `expected`, `files` and further columns; the function gets a `RewardContext` and returns a finite
number. An exception of the function is a failure of the grader, never a reward. The function is code that
runs on this machine, so it must be named by a person, never by a model.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from hermes.batch.reward import RewardFunction, load_reward, score
from hermes.batch.tasks import Dataset, TaskRow, read_dataset
from hermes.core import Message
from hermes.data.export.split import Side, side_of
from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.grading import Range
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.config import BaseEnvConfig
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.tasks.split import Keyed
from hermes.errors import ConfigError, UsageError

logger = logging.getLogger(__name__)
Row = TypeVar("Row", bound=Keyed)
_MIN_ROWS_TO_SPLIT = 10
"""With fewer tasks none is held out."""


class RewardFunctionConfig(HermesAgentEnvConfig):
    tokenizer_name: str = Field(default="hermes/smollm2", description="The policy's tokenizer.")
    dataset_name: str | None = Field(
        default=None, description="Prompts: a JSONL, JSON, CSV or Parquet file, or a dataset of the hub."
    )
    reward: str = Field(default="", description="The function that scores a rollout: FILE.py:FUNCTION.")
    eval_share: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the tasks that is held out; fewer than 10: none."
    )


class RewardFunctionEnv(HermesAgentBaseEnv):
    """Prompts from a file, scored by a function of yours: --env.dataset_name, --env.reward."""

    name = "reward_function"
    env_config_cls: ClassVar[Any] = RewardFunctionConfig
    config: RewardFunctionConfig
    default_toolsets: ClassVar[Sequence[str]] = ()
    reward_range: ClassVar[Range] = (-math.inf, math.inf)
    no_eval_items_hint: ClassVar[str] = (
        f"Tasks are held out of {_MIN_ROWS_TO_SPLIT} or more, a share of eval_share by their ids: "
        "name more tasks, or a larger --env.eval_share."
    )

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, Any]:
        server = APIServerConfig(
            base_url="http://localhost:8001/v1", model_name="policy", server_type="sglang"
        )
        return cls.env_config_cls(), [server]

    @property
    def display_name(self) -> str:
        """The reward function's name: what runs, rewards and rollouts are told apart by."""
        return (self.config.reward or "").rpartition(":")[2] or super().display_name

    async def setup(self) -> None:
        if not self.config.dataset_name or not self.config.reward:
            raise ConfigError(
                f"{self.name} needs prompts and something that scores them.",
                "Set dataset_name and reward: --env.dataset_name tasks.jsonl --env.reward my.py:score",
            )
        self._function = self.load_function()
        dataset = await asyncio.to_thread(
            read_dataset, self.config.dataset_name, prompt_field=self.config.prompt_field
        )
        for bad in dataset.bad:
            logger.warning("%s, line %d is left out: %s", self.config.dataset_name, bad.line, bad.reason)
        self._tasks, self._held_out_tasks = split(check_rows(dataset).rows, self.config.eval_share)

    def load_function(self) -> RewardFunction | None:
        """The function that scores a rollout; None if a subclass scores it otherwise."""
        return load_reward(self.config.reward)

    def item_key(self, item: TaskRow) -> str:
        return item.key

    def format_prompt(self, item: TaskRow) -> str:
        return item.prompts[0]

    def opening(self, item: TaskRow) -> Sequence[Message]:
        return [*super().opening(item), *item.history]

    def workspace_files(self, item: TaskRow) -> Mapping[str, bytes]:
        return {path: text.encode("utf-8", "surrogatepass") for path, text in item.files.items()}

    async def compute_reward(self, item: TaskRow, result: AgentResult, ctx: ToolContext) -> float:
        assert self._function is not None, "a subclass scores otherwise"
        return await score(self._function, item, result.trajectory, ctx.open_sandbox)


def check_rows(dataset: Dataset) -> Dataset:
    """UsageError for a row that an environment's rollout does not support."""
    for row in dataset.rows:
        reasons = (
            ("several prompts; a rollout takes one", len(row.prompts) > 1),
            ("an image of its own; set terminal_backend for all rows", row.image is not None),
            ("a cwd of its own; a rollout begins in its workspace", row.cwd is not None),
            ("a reward of its own; one function scores all rows", row.reward is not None),
        )
        for reason, applies in reasons:
            if applies:
                raise UsageError(f"row {row.key} has {reason}.", "Change the row, or leave it out.")
    return dataset


def split(rows: Sequence[Row], eval_share: float) -> tuple[list[Row], list[Row]]:
    """(to train on, held out), by each row's key: the same row is always on the same side."""
    if len(rows) < _MIN_ROWS_TO_SPLIT:
        return list(rows), []
    held_out = [row for row in rows if side_of(row.key, eval_share) is Side.EVAL]
    train = [row for row in rows if side_of(row.key, eval_share) is Side.TRAIN]
    return (train, held_out) if train else (list(rows), [])


if __name__ == "__main__":
    RewardFunctionEnv.cli()
