"""Prompts for RLHF: what people asked, from the store or from rated pairs, each once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSONObject, Message, Role, StepKind
from hermes.data.example import Example
from hermes.data.export.select import LeftOut, TrajectorySelection, select
from hermes.data.formats.turns import to_message
from hermes.data.preference.pairs import PreferencePair
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import HermesError

if TYPE_CHECKING:
    from hermes.store import Reader


def write_prompts(reader: Reader, selection: TrajectorySelection, path: Path) -> int:
    """The openings of the selected trajectories as a dataset; how many there are."""
    rows = _distinct(_opening(example) for example in select(reader, selection, LeftOut()))
    if not rows:
        raise HermesError(
            "the store has no prompts that match", "widen the filter, or name a file with --prompts"
        )
    ensure_dir(path.parent)
    atomic_write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return len(rows)


def pair_prompts(pairs: Sequence[PreferencePair]) -> list[JSONObject]:
    """The questions that the pairs answer, with the conversation before it, as rows of a dataset.

    A rollout begins with what people and the model wrote: from a call of a tool on, it is the policy's own.
    """
    return _distinct(_before_tools(pair.prompt) for pair in pairs)


def _distinct(openings: Iterable[Sequence[Message]]) -> list[JSONObject]:
    """Rows of those that are not empty."""
    rows: dict[str, JSONObject] = {}
    for opening in openings:
        if opening:
            row: JSONObject = {"messages": [to_message(message) for message in opening]}
            rows[json.dumps(row)] = row
    return list(rows.values())


def _before_tools(messages: Sequence[Message]) -> list[Message]:
    """Up to the last user message before the first call of a tool; empty if there is none, or an image."""
    opening: list[Message] = []
    for message in messages:
        if message.tool_calls or message.role is Role.TOOL:
            break
        opening.append(message)
    while opening and opening[-1].role is not Role.USER:
        opening.pop()
    return opening if not any(message.images for message in opening) else []


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
