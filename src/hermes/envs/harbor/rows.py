"""Harbor tasks as the rows of a batch: each sample is a trial of a task by our own agent.

The tasks' tests score the samples. A worker reads a task again before a trial of it, and refuses one that has
changed since the run was started.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.batch.options import HarborPlaceOptions, HarborTaskOptions
from hermes.batch.tasks import BadRow, Dataset, TaskRow
from hermes.core import JSONObject, content_hash
from hermes.envs.harbor.check import usable_tasks
from hermes.envs.harbor.dataset import read_tasks
from hermes.envs.harbor.place import PlaceOptions
from hermes.envs.harbor.places import ChosenPlaces, open_places, sweep_all
from hermes.envs.harbor.schema import TaskError
from hermes.envs.harbor.task import read_task
from hermes.envs.harbor.trial import Trial, open_trial
from hermes.envs.rewards.result import GraderError, RewardResult

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.sandbox.base import Sandbox


def read_rows(folder: Path, config: Config, options: HarborTaskOptions) -> Dataset:
    """The tasks of a folder that can be used here; the others are bad rows, by name.

    What killed trials have left is removed. ConfigError: no task can be used.
    """
    places = _places(config, options)
    sweep_all(config.home, places)
    verdicts_home = None if options.unsound else config.home
    tasks, reasons = usable_tasks(read_tasks(folder, config.environ), places, verdicts_home)
    rows = [
        TaskRow(
            key=task.key,
            prompts=tuple(stage.instruction for stage in task.stages),
            folder=str(task.folder),
            metadata={"task_digest": task.digest},
        )
        for task in tasks
    ]
    bad = [BadRow(number, reason, name) for number, (name, reason) in enumerate(reasons.items(), 1)]
    return Dataset(tuple(rows), tuple(bad), content_hash("\n".join(sorted(task.digest for task in tasks))))


def _places(config: Config, options: HarborPlaceOptions) -> ChosenPlaces:
    return open_places(config.home, config.settings.sandbox, PlaceOptions.of(options), options.place)


class HarborTrials:
    """Opens a trial for each sample; `values` are those of `HarborPlaceOptions`."""

    name = "harbor"

    def __init__(self, config: Config, **values: Any) -> None:
        self._config = config
        self._places = _places(config, HarborPlaceOptions(**values))

    @asynccontextmanager
    async def open(self, row: TaskRow) -> AsyncIterator[RowTrial]:
        """TaskError: the task has changed, or its image cannot be built."""
        assert row.folder is not None, "the rows were made by `read_rows`"
        task = read_task(Path(row.folder), self._config.environ)
        if task.digest != row.metadata["task_digest"]:
            raise TaskError("the task has changed since the run was started.", "Choose another --run-name.")
        async with open_trial(task, self._places.of(task), self._config.home) as trial:
            yield RowTrial(trial)


class RowTrial:
    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._error: GraderError | None = None
        """Why a step before the last has no reward."""
        self.timeout_s = trial.timeout_s

    async def open_sandbox(self) -> Sandbox:
        await self._trial.start()
        return await self._trial.open_agent()

    async def next_prompt(self) -> bool:
        try:
            await self._trial.score()
        except GraderError as error:
            self._error = error
            return False
        if self._trial.stage is None:
            return False
        await self._trial.start()
        return True

    async def reward(self) -> tuple[float, JSONObject]:
        if self._error is not None:
            raise self._error
        if self._trial.stage is not None:
            await self._trial.score()
        reward: RewardResult = self._trial.reward()
        return reward.value, {"parts": dict(reward.parts), "detail": reward.detail}
