"""Prompts for RLHF: what people asked, from the store, each once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import Message, Role, StepKind
from hermes.data.example import Example
from hermes.data.export.select import LeftOut, TrajectorySelection, select
from hermes.data.formats.turns import to_message
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.store import Reader


def write_prompts(reader: Reader, selection: TrajectorySelection, path: Path) -> int:
    """The openings of the selected trajectories as a dataset; how many there are."""
    rows = []
    written: set[str] = set()
    for example in select(reader, selection, LeftOut()):
        opening = _opening(example)
        if not opening:
            continue
        row = json.dumps({"messages": [to_message(message) for message in opening]}, ensure_ascii=False)
        if row not in written:
            written.add(row)
            rows.append(row)
    if not rows:
        raise HermesError(
            "the store has no prompts that match", "widen the filter, or name a file with --prompts"
        )
    ensure_dir(path.parent)
    atomic_write(path, "\n".join(rows) + "\n")
    return len(rows)


def _opening(example: Example) -> list[Message]:
    """Everything up to the first user message that the model answered; empty if there is none."""
    messages: list[Message] = []
    for step in example.trajectory.steps:
        if step.ephemeral:
            continue
        if step.kind is StepKind.MODEL:
            break
        messages.append(step.message)
    while messages and messages[-1].role is not Role.USER:
        messages.pop()
    return messages if not any(message.images for message in messages) else []
