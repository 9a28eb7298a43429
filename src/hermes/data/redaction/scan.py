"""Looking through the store for what an export would redact, without showing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from hermes.core import Message
from hermes.data.redaction.redact import RedactionLevel, Scrubber
from hermes.safety.redact import MARKER, Redactor
from hermes.store import Filter, Reader

_AROUND_CHARS = 40


@dataclass(frozen=True, slots=True)
class RedactionFinding:
    trajectory_id: str
    step_index: int
    role: str
    rules: dict[str, int]
    """Layer and rule → how often."""
    excerpts: tuple[str, ...]
    """The surroundings of each hit, with the secret's mark in its place."""


def scan(reader: Reader, filters: Filter, redactor: Redactor) -> Iterator[RedactionFinding]:
    """Every step with a hit, oldest trajectory first."""
    for trajectory in reader.trajectories(filters):
        for step in trajectory.steps:
            scrubber = Scrubber(redactor, RedactionLevel.SHAPES)
            redacted = [(text, scrubber.text(text)) for text in _texts(step.message)]
            if scrubber.report.hits:
                excerpts = tuple(piece for before, after in redacted for piece in _excerpts(before, after))
                rules = dict(sorted(scrubber.report.hits.items()))
                yield RedactionFinding(
                    trajectory.header.id, step.index, step.message.role.value, rules, excerpts
                )


def totals(findings: list[RedactionFinding]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for finding in findings:
        counted.update(finding.rules)
    return dict(sorted(counted.items()))


def _texts(message: Message) -> list[str]:
    return [message.content, message.reasoning or "", *(call.arguments for call in message.tool_calls)]


def _excerpts(before: str, after: str) -> Iterator[str]:
    """The marks of a text that changed, each with what is around it."""
    at = -1 if before == after else after.find(MARKER)
    while at >= 0:
        end = after.find("]", at) + 1
        yield after[max(0, at - _AROUND_CHARS) : end + _AROUND_CHARS]
        at = after.find(MARKER, end)
