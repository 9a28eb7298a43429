"""Writing trajectories to a file: whole or not at all, the same bytes every time.

Rows go to a temporary file beside the target, which replaces it once everything is on disk. What is
left out is counted with its reason, never dropped in silence.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hermes.config.files import replacing
from hermes.core import JSONObject, Role, StepKind, StopReason, Trajectory
from hermes.data.formats import sharegpt
from hermes.store import Filter, Reader


@dataclass(frozen=True)
class Report:
    rows: int
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → number of trajectories that matched the filter but were not written."""


def export_sharegpt(
    reader: Reader, which: Filter, output: Path, *, roles: sharegpt.Roles, only_completed: bool
) -> Report:
    """Every matching trajectory as one JSONL row, oldest first."""
    written = 0
    left_out: Counter[str] = Counter()
    with replacing(output) as file:
        for trajectory in reader.each(which):
            reason = _unfit(trajectory, only_completed)
            if reason:
                left_out[reason] += 1
                continue
            file.write(json.dumps(_row(reader, trajectory, roles), ensure_ascii=False) + "\n")
            written += 1
    return Report(written, left_out)


def export_conversation(reader: Reader, trajectory_id: str, output: Path) -> None:
    """One trajectory as one row, finished or not: somebody asked for exactly this one."""
    with replacing(output) as file:
        row = _row(reader, reader.get(trajectory_id), sharegpt.Roles.HUMAN_GPT)
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _unfit(trajectory: Trajectory, only_completed: bool) -> str | None:
    if trajectory.outcome is None:
        return "still running"
    if not any(message.role is Role.ASSISTANT for message in trajectory.messages):
        return "the model never answered"
    if only_completed and trajectory.outcome.stop_reason is not StopReason.COMPLETED:
        return trajectory.outcome.stop_reason.value
    return None


def _row(reader: Reader, trajectory: Trajectory, roles: sharegpt.Roles) -> JSONObject:
    first_call = next((step for step in trajectory.steps if step.kind is StepKind.MODEL), None)
    tools = reader.model_input(trajectory.header.id, first_call)[1] if first_call else ()
    verdict = reader.summaries(Filter(ids=(trajectory.header.id,)))[0]
    return sharegpt.to_row(trajectory, tools, roles=roles, reward=verdict.reward, rating=verdict.rating)
