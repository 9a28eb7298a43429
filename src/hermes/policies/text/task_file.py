"""A file of tasks as the signal: the rows of `hermes batch`, scored by a function, a judge or `expected`.

Each rollout is a sample of a batch run: recorded with the hash of its texts, continued where it was cut off,
and scored while its sandbox exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.agent.build import open_writer
from hermes.batch import exact
from hermes.batch.journal import SampleEntry, SampleState
from hermes.batch.reward import RewardContext, RewardFunction, load_reward
from hermes.batch.rollout import WorkerContext, run_sample
from hermes.batch.spec import RunSpec
from hermes.batch.tasks import Dataset, TaskRow
from hermes.config.paths import db_path
from hermes.core.texts import Texts
from hermes.data.example import build
from hermes.errors import HermesError, ProviderError, UsageError
from hermes.policies.text.ledger import texts_key
from hermes.policies.text.signal import TaskScore, TextTask, as_reference
from hermes.ratings.auto import AutoRater
from hermes.store import Reader

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.models.base import ChatModel

_TRIES = 2


@dataclass(frozen=True)
class Grader:
    """The function that scores, under the name that is recorded with each reward."""

    name: str
    function: RewardFunction
    by_model: bool = False
    """Whether the scores are a model's ratings, and no fact about the answer."""


def function_grader(reference: str) -> Grader:
    return Grader(reference, load_reward(reference))


def expected_grader(dataset: Dataset) -> Grader:
    """Exact match; UsageError if a row does not say what is expected."""
    missing = [row.key for row in dataset.rows if row.expected is None]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(dataset.rows)} tasks have no 'expected', and nothing else scores them",
            "add --reward FILE.py:FUNCTION or --judge MODEL",
        )
    name = exact.grader_name()
    return Grader(name, getattr(exact, name))


def rater_grader(rater: AutoRater) -> Grader:
    """A judge or a reward model: its 1 to 5 as 0 to 1, under its own name."""

    async def rate(context: RewardContext) -> float:
        trajectory = context.trajectory
        example = build(trajectory.header, trajectory.messages)
        return ((await rater.rate(example)).score - 1) / 4

    return Grader(rater.name, rate, by_model=True)


class TaskFileSignal:
    """Rollouts of our own agent on the tasks of a file."""

    def __init__(
        self,
        config: Config,
        model: ChatModel,
        dataset: Dataset,
        grader: Grader,
        run: str,
        toolsets: Sequence[str] | None,
        seed: int,
    ) -> None:
        mark = " (ratings by a model)" if grader.by_model else ""
        self.name = f"{grader.name}{mark} on {len(dataset.rows)} tasks"
        self._rows = {row.key: row for row in dataset.rows}
        self.tasks = [
            TextTask(row.key, "\n\n".join(row.prompts), as_reference(row.expected)) for row in dataset.rows
        ]
        self._writer, self._reader = open_writer(config), Reader(db_path(config.home))
        spec = RunSpec(
            run,
            "",
            dataset.digest,
            model.name,
            toolsets=None if toolsets is None else tuple(toolsets),
            seed=seed,
            reward=grader.name,
        )
        rewards = {grader.name: grader.function}
        rewards |= {row.reward: load_reward(row.reward) for row in dataset.rows if row.reward}
        self._context = WorkerContext(spec, config, model, self._writer, self._reader, rewards)

    async def score(self, texts: Texts, task: TextTask) -> TaskScore:
        spec = replace(self._context.spec, id=texts_key(texts), texts=dict(texts))
        config = replace(self._context.config, texts=texts)
        context, row = replace(self._context, spec=spec, config=config), self._rows[task.key]
        for _ in range(_TRIES):
            entry = await run_sample(context, row, 0)
            if entry.state is not SampleState.FAILED:
                return _score(entry, row)
        raise ProviderError(
            f"the task {task.key} could not be run: {entry.reason}", "the same command goes on from here"
        )

    async def close(self) -> None:
        self._writer.close()
        self._reader.close()


def _score(entry: SampleEntry, row: TaskRow) -> TaskScore:
    data = entry.row
    if data.get("reward") is None:
        raise HermesError(
            f"the task {row.key} could not be scored: {data.get('reward_error')}",
            "mend the reward function; the same command goes on from here",
        )
    answers = [turn["value"] for turn in data["conversations"] if turn["from"] == "gpt"]
    expected = "" if row.expected is None else f"Expected: {as_reference(row.expected)}. "
    ended = "" if data["completed"] else f"It did not finish: {data['outcome']['stop_reason']}. "
    usage = data["usage"]
    return TaskScore(
        float(data["reward"]),
        answers[-1] if answers else "",
        f"{expected}{ended}".strip(),
        str(data["id"]),
        int(data["turns"]),
        int(usage["input_tokens"]) + int(usage["output_tokens"]),
        data["cost_usd"],
    )


def read_tasks(path: Path) -> Dataset:
    """UsageError if the file has no usable row, or one that is no task."""
    from hermes.batch.tasks import read_dataset

    dataset = read_dataset(str(path))
    if dataset.bad:
        first = dataset.bad[0]
        raise UsageError(
            f"{path} has {len(dataset.bad)} rows that are no tasks; the first: line {first.line}: "
            f"{first.reason}",
            "mend or remove them",
        )
    return dataset
