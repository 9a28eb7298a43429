"""Selects the built-in environment for a file of prompts and a reward, done by our agent or by a program."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import UsageError
from hermes.rl.config.resolve import Resolved, apply_values, save, select

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSON

_OUR_AGENT, _PROGRAM = "reward_function", "program"


def select_reward_function(
    config: Config,
    environment: str | None,
    prompts: str | None,
    reward: str | None,
    agent: str | None = None,
    train_model: str | None = None,
) -> Resolved:
    """UsageError for prompts, a reward or a program (`agent`) that cannot be used.

    All are loaded here, so that a mistake is found before anything is started.
    """
    from hermes.batch.reward import check_reward
    from hermes.batch.tasks import read_dataset
    from hermes.envs.builtin.program import PROGRAM_REWARD, script_of
    from hermes.envs.builtin.reward_function import check_rows
    from hermes.envs.programs.launch import find_program

    chosen = _PROGRAM if agent else _OUR_AGENT
    if environment not in (None, chosen):
        raise UsageError(
            f"--env {environment} has prompts and a reward of its own",
            "leave out --env, or --prompts and --reward",
        )
    if not prompts or not reward:
        missing, meaning = ("--reward", "FILE.py:FUNCTION") if prompts else ("--prompts", "FILE")
        raise UsageError(
            f"{missing} is missing", f"--prompts and --reward belong together: {missing} {meaning}"
        )
    program = find_program(agent) if agent else None
    by_program = program is not None and (reward == PROGRAM_REWARD or script_of(reward) is not None)
    if not by_program:
        check_reward(reward)
    check_rows(read_dataset(prompts))
    path, _, function = reward.rpartition(":")
    name = program.agent if program else function
    save(config.home, replace(select(config, chosen), environment=name))
    file = Path(prompts)
    values: dict[str, JSON] = {"env.dataset_name": str(file.absolute()) if file.exists() else prompts}
    if reward == PROGRAM_REWARD:
        values["env.reward"] = reward
    else:
        values["env.reward"] = (
            str(Path(reward).absolute()) if by_program else f"{Path(path).absolute()}:{function}"
        )
    if agent:
        values |= {"env.agent": _absolute_words(agent), "env.train_model": train_model or ""}
    return apply_values(config, values)


def _absolute_words(command: str) -> str:
    """The command with files of this folder by their absolute paths: a run is started from another one."""
    words = [
        str(Path(word).absolute()) if "{" not in word and Path(word).is_file() else word
        for word in shlex.split(command)
    ]
    return shlex.join(words)
