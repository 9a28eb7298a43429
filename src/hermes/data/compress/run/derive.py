"""A compressed trajectory as a record of its own in the store, beside the one it was made from.

The record has the parent's steps with their messages as they are now, what was left out missing, and the
map of folds in its metadata. What the calls cost, and their exact tokens, stay with the parent: nothing was
sampled here, and no figure may count twice.
"""

from __future__ import annotations

from dataclasses import replace

from hermes.core import Header, Message, Relation, Step, Usage
from hermes.core.outcome import COMPLETED
from hermes.data.compress.run.job import CompressResult
from hermes.data.example import load
from hermes.store import Filter, Reader, Writer


def record_derived(reader: Reader, writer: Writer, done: CompressResult) -> None:
    """Writes it, unless it is there already; returns once it is on disk."""
    assert done.messages is not None
    if reader.count(Filter(ids=(done.derived_id,))):
        return
    parent = reader.get(done.notes["parent_id"])
    tools = load(reader, parent).tools
    steps = _steps([step for step in parent.steps if not step.ephemeral], done)
    header: Header = replace(
        parent.header,
        id=done.derived_id,
        parent_id=parent.header.id,
        relation=Relation.COMPRESSED,
        metadata={**parent.header.metadata, "compression": done.notes},
    )
    writer.begin(header)
    history: list[Message] = []
    for step in steps:
        context = tuple(history) if step.call else None
        writer.append(header.id, step, context=context, tools=tools if step.call else ())
        history.append(step.message)
    writer.finish(header.id, parent.outcome or COMPLETED).result()


def _steps(steps: list[Step], done: CompressResult) -> list[Step]:
    assert done.messages is not None
    remaining: list[Step] = []
    for step, message in zip(steps, done.messages, strict=True):
        if message is None:
            continue
        call = step.call and replace(
            step.call, usage=Usage(), cost_usd=0.0, latency_ms=0.0, first_token_ms=None, raw=None, tokens=None
        )
        remaining.append(replace(step, index=len(remaining), message=Message.from_json(message), call=call))
    return remaining
