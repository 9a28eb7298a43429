"""Redaction on the way out: known values, then names, then shapes, with a report of what was found.

The store has redacted known values when it wrote. An export does it again (a key may have become known
since) and adds the layers that can be wrong, so they never touch the record itself. Token ids of a
trajectory with a hit are withheld: they would spell out the redacted text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hermes.core import JSON, JSONObject, Message, Step, ToolCall
from hermes.data.example import Example
from hermes.data.formats import record
from hermes.safety.patterns import PatternHit, RedactionLayer, find, may_match
from hermes.safety.redact import MARKER, Redactor
from hermes.store import Filter, Reader


class RedactionLevel(StrEnum):
    """Each includes those before it."""

    NONE = "none"
    KNOWN = "known"
    NAMES = "names"
    SHAPES = "shapes"


_LAYERS = {
    RedactionLevel.NAMES: (RedactionLayer.NAMES,),
    RedactionLevel.SHAPES: (RedactionLayer.NAMES, RedactionLayer.SHAPES),
}


@dataclass
class RedactionReport:
    """The number of redactions, by layer and rule; never the values."""

    examples: int = 0
    """Trajectories with at least one hit."""
    hits: Counter[str] = field(default_factory=Counter)
    """'known:OPENAI_API_KEY', 'names:flag', 'shapes:github-token' … → how often."""


class Scrubber:
    """Redacts at one level. Applying it again changes nothing more."""

    def __init__(self, redactor: Redactor, level: RedactionLevel) -> None:
        self._redactor = redactor
        self._level = level
        self.report = RedactionReport()
        self._counted: set[str] = set()

    def example(self, example: Example) -> Example:
        """The example without secrets, counted in `report`."""
        if self._level is RedactionLevel.NONE:
            return example
        if self._is_clean("\n".join(_all_texts(example))):
            return example
        before = self.report.hits.copy()
        trajectory = example.trajectory
        steps = tuple(self._step(step) for step in trajectory.steps)
        tools = tuple(self.json(tool) for tool in example.tools)
        header = replace(
            trajectory.header,
            metadata=self.json(trajectory.header.metadata),
            task_id=self.json(trajectory.header.task_id),
        )
        outcome = trajectory.outcome
        if outcome is not None and outcome.detail is not None:
            outcome = replace(outcome, detail=self.text(outcome.detail))
        if self.report.hits == before:
            return example
        if example.id in self._counted:
            self.report.hits = before
        else:
            self._counted.add(example.id)
            self.report.examples += 1
        steps = tuple(_without_tokens(step) for step in steps)
        return replace(
            example, trajectory=replace(trajectory, header=header, steps=steps, outcome=outcome), tools=tools
        )

    def _is_clean(self, text: str) -> bool:
        """Whether no expression matches anywhere, so that none does in a part of the text."""
        layers = _LAYERS.get(self._level, ())
        return not self._redactor.may_change(text) and not any(may_match(text, layer) for layer in layers)

    def record(self, row: JSONObject) -> JSONObject:
        """A row of the format `record` without secrets, raw replies and settings included; counted too."""
        before = self.report.hits.copy()
        clean: JSONObject = self.json(row)
        if self.report.hits == before:
            return row
        self.report.examples += 1
        return record.without_tokens(clean)

    def text(self, text: str) -> str:
        """The text without secrets, counted in `report`."""
        if self._level is RedactionLevel.NONE or not text:
            return text
        redacted = text
        if counts := self._redactor.counts(text):
            self.report.hits.update({f"known:{name}": count for name, count in counts.items()})
            redacted = self._redactor.text(text)
        for layer in _LAYERS.get(self._level, ()):
            if hits := list(find(redacted, layer)):
                self.report.hits.update(f"{layer.value}:{hit.rule}" for hit in hits)
                redacted = _replace(redacted, hits)
        return redacted

    def json(self, value: JSON) -> JSON:
        """Every text inside a JSON value; keys stay, and give their values' names away."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        if isinstance(value, dict):
            return {key: self._named(key, item) for key, item in value.items()}
        return value

    def _named(self, key: str, value: JSON) -> JSON:
        """A text as the value of its key, so that the key's name counts."""
        if not isinstance(value, str):
            return self.json(value)
        both = _pair_text(key, value)
        redacted = self.text(both)
        if redacted == both:
            return value
        try:
            return json.loads("{" + redacted + "}")[key]
        except (ValueError, KeyError):
            return self.text(value)

    def _step(self, step: Step) -> Step:
        message = self._message(step.message)
        return step if message is step.message else replace(step, message=message)

    def _message(self, message: Message) -> Message:
        """The same object if there is nothing to redact in it, which is quicker than a copy."""
        content = self.text(message.content)
        reasoning = None if message.reasoning is None else self.text(message.reasoning)
        tool_calls = tuple(self._call(call) for call in message.tool_calls)
        images = tuple(self.text(image) for image in message.images)
        if (content, reasoning, tool_calls, images) == (
            message.content,
            message.reasoning,
            message.tool_calls,
            message.images,
        ):
            return message
        return replace(message, content=content, reasoning=reasoning, tool_calls=tool_calls, images=images)

    def _call(self, call: ToolCall) -> ToolCall:
        arguments = self.text(call.arguments)
        error = None if call.error is None else self.text(call.error)
        if (arguments, error) == (call.arguments, call.error):
            return call
        return replace(call, arguments=arguments, error=error)


def _all_texts(example: Example) -> Iterator[str]:
    """Every text that `Scrubber.example` looks at, as it looks at it."""
    trajectory = example.trajectory
    for step in trajectory.steps:
        message = step.message
        yield message.content
        if message.reasoning is not None:
            yield message.reasoning
        for call in message.tool_calls:
            yield call.arguments
            yield call.error or ""
        yield from message.images
    yield from _json_texts([trajectory.header.metadata, trajectory.header.task_id, *example.tools])
    if trajectory.outcome is not None:
        yield trajectory.outcome.detail or ""


def _json_texts(value: JSON) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _json_texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str):
                yield _pair_text(key, item)
                yield item
            else:
                yield from _json_texts(item)


def _pair_text(key: str, value: str) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"


def _replace(text: str, hits: Sequence[PatternHit]) -> str:
    if not hits:
        return text
    data = text.encode("utf-8", "surrogatepass")
    pieces: list[bytes] = []
    end = 0
    for hit in hits:
        pieces += (data[end : hit.start], f"[REDACTED:{hit.rule}]".encode())
        end = hit.end
    return b"".join((*pieces, data[end:])).decode("utf-8", "surrogatepass")


def _without_tokens(step: Step) -> Step:
    if step.call is None or step.call.tokens is None:
        return step
    return replace(step, call=replace(step.call, tokens=None, tokens_withheld="redacted"))


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
