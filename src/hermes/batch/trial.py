"""Rows whose files and score are their own: each sample is a trial, which opens the sandbox and scores it.

What opens trials lies in a package above this one. So `KINDS` names it, and the specification of a run names
its kind: `trials = {"kind": "harbor", …}`. It is called as `opener(config, **the rest)` in each worker.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from hermes.config.load import Config
from hermes.core import JSONObject

if TYPE_CHECKING:
    from hermes.batch.tasks import TaskRow
    from hermes.sandbox.base import Sandbox


KINDS = {"harbor": ("hermes.envs.harbor.rows", "HarborTrials")}
"""The module and name that opens each kind of trials. The file of a run names a kind, and no code."""


class Trial(Protocol):
    """One sample of a row, with the row's files for the time of a block."""

    @property
    def timeout_s(self) -> float:
        """The row's own time limit."""
        ...

    async def open_sandbox(self) -> Sandbox: ...

    async def next_prompt(self) -> bool:
        """Whether the row's next prompt is to be played; all processes of the agent have been ended."""
        ...

    async def reward(self) -> tuple[float, JSONObject]:
        """The reward with its details; all processes have been ended. GraderError: there is none."""
        ...


class Trials(Protocol):
    @property
    def name(self) -> str:
        """The source of its rewards in the record."""
        ...

    def open(self, row: TaskRow) -> AbstractAsyncContextManager[Trial]: ...


def open_trials(named: JSONObject | None, config: Config) -> Trials | None:
    """The trials that the specification of a run names; None: its rows run in the configured sandbox."""
    if named is None:
        return None
    module, name = KINDS[named["kind"]]
    arguments = {argument: value for argument, value in named.items() if argument != "kind"}
    trials: Trials = getattr(importlib.import_module(module), name)(config, **arguments)
    return trials
