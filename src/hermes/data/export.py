"""Writing trajectories to a file: whole or not at all, the same bytes every time.

Rows go to a temporary file beside the target, which replaces it once everything is on disk. What is
left out is counted with its reason, never dropped in silence.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from hermes.core import JSONObject, Role, StepKind, StopReason, Trajectory
from hermes.data.formats import sharegpt
from hermes.errors import HermesError
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


@contextmanager
def replacing(target: Path) -> Iterator[TextIO]:
    """A file that takes the target's place when the block ends well, and vanishes otherwise."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise _cannot_write(target, error) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _cannot_write(target, error) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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


def _cannot_write(target: Path, error: OSError) -> HermesError:
    return HermesError(
        f"cannot write {target}: {error.strerror or error}",
        "choose another --output, or free space and make the directory writable",
    )
