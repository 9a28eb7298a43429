"""A trajectory and its compressed version side by side, with what was folded marked."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from hermes.cli.render import call_text, fold
from hermes.core import JSONObject, Message, Relation, Trajectory
from hermes.errors import UsageError
from hermes.safety.text import printable

if TYPE_CHECKING:
    from hermes.store import Reader

_MARKS = {"same": " ", "folded": "~", "left out": "-"}
_COLOURS = {"same": None, "folded": "yellow", "left out": "red"}
_MIN_COLUMN = 30
_MAX_LINES = 14


def show_compressed(reader: Reader, trajectory_id: str, *, as_json: bool) -> None:
    """Either of the two may be named."""
    original, compressed = _both(reader, reader.get(trajectory_id))
    if as_json:
        from hermes.data.record import to_record

        records = (to_record(reader, each, with_inputs=False) for each in (original, compressed))
        click.echo(
            json.dumps(dict(zip(("original", "compressed"), records, strict=True)), ensure_ascii=False)
        )
        return
    width = shutil.get_terminal_size((160, 24)).columns
    click.echo(side_by_side(original, compressed, max(_MIN_COLUMN, (width - 5) // 2)))


def _both(reader: Reader, found: Trajectory) -> tuple[Trajectory, Trajectory]:
    from hermes.data.export.select import compressed_versions

    if found.header.relation is Relation.COMPRESSED and found.header.parent_id:
        return reader.get(found.header.parent_id), found
    version = compressed_versions(reader).get(found.header.id)
    if version is None:
        raise UsageError(
            f"{found.header.id} has no compressed version",
            f"hermes compress --input id={found.header.id} --output FILE makes one",
        )
    return found, reader.get(version)


def side_by_side(original: Trajectory, compressed: Trajectory, column: int) -> str:
    notes: JSONObject = compressed.header.metadata["compression"]
    folds: dict[int, list[JSONObject]] = {}
    for each in notes["map"]:
        folds.setdefault(each["message"], []).append(each)
    lines = [
        click.style(
            f"{original.header.id}  ->  {compressed.header.id}\n"
            f"target {notes['target_max_tokens']} tokens of {printable(notes['tokenizer'])}, "
            f"strategy {notes['strategy']}   ~ folded   - left out",
            bold=True,
        )
    ]
    now = iter(compressed.messages)
    for index, message in enumerate(original.messages):
        done = folds.get(index, [])
        gone = any(each["kind"] in ("exchange", "instruction") for each in done)
        state = "left out" if gone else "folded" if done else "same"
        lines += _pair(index, message, None if gone else next(now), state, done, column)
    return "\n".join(lines)


def _pair(
    index: int, before: Message, after: Message | None, state: str, folds: list[JSONObject], column: int
) -> Iterator[str]:
    saved = ", ".join(
        f"{entry['kind']} {entry['original_tokens']} -> {entry['kept_tokens']}"
        + (" (protected turn)" if entry.get("protected") else "")
        for entry in folds
    )
    yield click.style(f"\n[{index}] {before.role.value}  {saved}".rstrip(), bold=True)
    left = _wrapped(before, column)
    right = ["(as it was)"] if state == "same" else _wrapped(after, column) if after else ["(left out)"]
    for a, b in zip_longest(left, right, fillvalue=""):
        yield click.style(f"{_MARKS[state]} {a:<{column}} | {b}".rstrip(), fg=_COLOURS[state])


def _wrapped(message: Message, column: int) -> list[str]:
    parts = [f"(thinking) {message.reasoning}"] if message.reasoning else []
    parts += [message.content] if message.content else []
    parts += [f"-> {call_text(call)}" for call in message.tool_calls]
    text = fold("\n".join(parts)).expandtabs(4)
    lines = [piece for line in text.splitlines() for piece in textwrap.wrap(line, column) or [""]]
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 1], f"… {len(lines) - _MAX_LINES + 1} lines more …"]
    return lines or ["(empty)"]
