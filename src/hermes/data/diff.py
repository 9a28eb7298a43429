"""Where two trajectories part ways: the first message that differs, and what follows on each side."""

from __future__ import annotations

from dataclasses import dataclass

from hermes.core import JSONObject, Message, Trajectory


@dataclass(frozen=True, slots=True)
class Difference:
    shared: int
    """Number of leading messages that are equal in role, text, thinking and calls."""
    left: tuple[Message, ...]
    """The messages that follow them on each side; both empty if the conversations are equal."""
    right: tuple[Message, ...]

    @property
    def equal(self) -> bool:
        return not self.left and not self.right

    def to_json(self) -> JSONObject:
        return {
            "equal": self.equal,
            "shared": self.shared,
            "left": [message.to_json() for message in self.left],
            "right": [message.to_json() for message in self.right],
        }


def compare(left: Trajectory, right: Trajectory) -> Difference:
    a, b = left.messages, right.messages
    shared = 0
    while shared < min(len(a), len(b)) and message_content(a[shared]) == message_content(b[shared]):
        shared += 1
    return Difference(shared, a[shared:], b[shared:])


def message_content(message: Message) -> tuple[object, ...]:
    """The parts that two equal messages have in common: everything but the call ids, which are random."""
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    return message.role, message.content, message.reasoning, calls, message.name, message.images
