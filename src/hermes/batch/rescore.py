"""Scores recorded trajectories again, with a reward function of one's choice.

The rollout's sandbox no longer exists: a function that uses it fails, and the trajectory stays without the
new score. Rewards are appended; earlier ones stay. Infrastructure failures are not scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hermes.batch.reward import GraderError, RewardFunction, score
from hermes.batch.tasks import TaskRow
from hermes.core import Reward, Role, Trajectory
from hermes.core.clock import now_ms
from hermes.errors import UsageError
from hermes.sandbox.base import Sandbox
from hermes.store import Writer


@dataclass
class Rescoring:
    """The trajectories that were scored, and why others were not."""

    rewards: dict[str, float] = field(default_factory=dict)
    """Trajectory id → the new reward."""
    errors: list[str] = field(default_factory=list)
    """The grader's message for each trajectory that it failed on."""
    skipped: int = 0
    """Trajectories that still run, or that infrastructure ended."""

    @property
    def mean(self) -> float | None:
        return sum(self.rewards.values()) / len(self.rewards) if self.rewards else None


async def rescore(
    writer: Writer,
    reference: str,
    function: RewardFunction,
    trajectories: Iterable[Trajectory],
    rows: Mapping[str, TaskRow],
) -> Rescoring:
    """Scores each and stores the reward under `reference`. `rows`: task id → the task, for `expected`."""
    result = Rescoring()
    for trajectory in trajectories:
        if trajectory.outcome is None or trajectory.outcome.infrastructure:
            result.skipped += 1
            continue
        header = trajectory.header
        row = rows.get(header.task_id or "") or _row_of(trajectory)
        try:
            value = await score(function, row, trajectory, _no_sandbox)
        except GraderError as error:
            result.errors.append(error.message)
            continue
        reward = Reward(header.id, value, reference, {"rescored": True}, now_ms())
        writer.add_reward(reward).result()
        result.rewards[header.id] = value
    return result


def _row_of(trajectory: Trajectory) -> TaskRow:
    """The task as far as the record has it: the questions and the metadata."""
    header = trajectory.header
    prompts = tuple(message.content for message in trajectory.messages if message.role is Role.USER)
    expected = header.metadata.get("expected")
    return TaskRow(header.task_id or header.id, prompts, expected=expected, metadata=header.metadata)


async def _no_sandbox() -> Sandbox:
    raise UsageError("the sandbox of a recorded trajectory no longer exists", "score the answer alone")
