"""Selects the built-in environment for a file of prompts and a reward function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import UsageError
from hermes.rl.config.resolve import Resolved, apply_values, save, select

if TYPE_CHECKING:
    from hermes.config.load import Config

_ENVIRONMENT = "reward_function"


def select_reward_function(
    config: Config, environment: str | None, prompts: str | None, reward: str | None
) -> Resolved:
    """UsageError for prompts or a function that cannot be used.

    Both are loaded here, so that a mistake is found before anything is started.
    """
    from hermes.batch.reward import check_reward
    from hermes.batch.tasks import read_dataset
    from hermes.envs.builtin.reward_function import check_rows

    if environment not in (None, _ENVIRONMENT):
        raise UsageError(
            f"--env {environment} has prompts and a reward of its own",
            "leave out --env, or --prompts and --reward",
        )
    if not prompts or not reward:
        missing, meaning = ("--reward", "FILE.py:FUNCTION") if prompts else ("--prompts", "FILE")
        raise UsageError(
            f"{missing} is missing", f"--prompts and --reward belong together: {missing} {meaning}"
        )
    check_reward(reward)
    check_rows(read_dataset(prompts))
    path, _, function = reward.rpartition(":")
    save(config.home, replace(select(config, _ENVIRONMENT), environment=function))
    file = Path(prompts)
    values = {
        "env.dataset_name": str(file.absolute()) if file.exists() else prompts,
        "env.reward": f"{Path(path).absolute()}:{function}",
    }
    return apply_values(config, values)
