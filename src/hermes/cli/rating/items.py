"""What a rater sees in the terminal: the conversation, without the model's name, reward or length."""

from __future__ import annotations

import click

from hermes.cli.render import render_message, render_step
from hermes.core import Message, StepKind, Trajectory
from hermes.data.diff import compare
from hermes.data.preference.pairs import rest_of_turn
from hermes.ratings import QueueItem
from hermes.store import Reader


def show_item(reader: Reader, item: QueueItem, step: int | None) -> str:
    trajectory = reader.get(item.trajectory_id)
    if item.other_id is None:
        return _single(trajectory, step)
    rival = reader.get(item.other_id)
    first, second = (trajectory, rival) if item.shown_first == item.trajectory_id else (rival, trajectory)
    difference = compare(first, second)
    shared = [_line(message) for message in first.messages[: difference.shared]]
    sides = (("first (a)", difference.left), ("second (b)", difference.right))
    parts = ["\n\n".join(shared) or "(nothing in common)"]
    for title, messages in sides:
        turn = rest_of_turn(messages) or messages
        body = "\n\n".join(_line(message) for message in turn) or "(ends here)"
        parts.append(f"{click.style(f'── {title} ──', bold=True)}\n{body}")
    return "\n\n".join(parts)


def steps_to_rate(trajectory: Trajectory) -> list[int]:
    """The model's own steps."""
    return [step.index for step in trajectory.steps if step.kind is StepKind.MODEL]


def _single(trajectory: Trajectory, step: int | None) -> str:
    steps = [entry for entry in trajectory.steps if not entry.ephemeral]
    if step is not None:
        steps = [entry for entry in steps if entry.index <= step]
    text = "\n".join(render_step(entry) for entry in steps)
    return text if step is None else f"{text}\n\n{click.style(f'step {step}?', bold=True)}"


def _line(message: Message) -> str:
    return f"{click.style(message.role.value, bold=True)}\n{render_message(message)}"
