"""Quality filters: the reason why a finished trajectory is left out of the dataset, if it is."""

from __future__ import annotations

from hermes.batch.spec import Filters
from hermes.core import Role, StopReason, ToolErrorKind, Trajectory


def filter_reason(trajectory: Trajectory, reward: float | None, filters: Filters) -> str | None:
    """The first filter that removes the trajectory, as text; None if it stays."""
    completed = trajectory.outcome is not None and trajectory.outcome.stop_reason is StopReason.COMPLETED
    if filters.only_completed and not completed:
        return (
            f"not completed: {trajectory.outcome.stop_reason.value}"
            if trajectory.outcome
            else "not completed"
        )
    answers = [message for message in trajectory.messages if message.role is Role.ASSISTANT]
    if filters.require_reasoning and not any(message.reasoning for message in answers):
        return "no reasoning"
    if filters.drop_unknown_tools and any(
        step.result and step.result.error_kind is ToolErrorKind.UNKNOWN_TOOL for step in trajectory.steps
    ):
        return "called a tool that does not exist"
    if filters.min_turns is not None and trajectory.turns < filters.min_turns:
        return f"fewer than {filters.min_turns} turns"
    if filters.max_turns is not None and trajectory.turns > filters.max_turns:
        return f"more than {filters.max_turns} turns"
    if filters.min_reward is not None and (reward is None or reward < filters.min_reward):
        return f"reward under {filters.min_reward:g}"
    return None
