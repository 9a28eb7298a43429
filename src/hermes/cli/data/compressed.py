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
    """`trajectory_id` names the original or the compressed version."""
    original, compressed = _original_and_compressed(reader, reader.get(trajectory_id))
    if as_json:
        from hermes.data.record import to_record

        records = (to_record(reader, version, with_inputs=False) for version in (original, compressed))
        click.echo(
            json.dumps(dict(zip(("original", "compressed"), records, strict=True)), ensure_ascii=False)
        )
        return
    width = shutil.get_terminal_size((160, 24)).columns
    click.echo(side_by_side(original, compressed, max(_MIN_COLUMN, (width - 5) // 2)))


def _original_and_compressed(reader: Reader, trajectory: Trajectory) -> tuple[Trajectory, Trajectory]:
    from hermes.data.export.select import compressed_versions

    if trajectory.header.relation is Relation.COMPRESSED and trajectory.header.parent_id:
        return reader.get(trajectory.header.parent_id), trajectory
    version = compressed_versions(reader).get(trajectory.header.id)
    if version is None:
        raise UsageError(
            f"{trajectory.header.id} has no compressed version",
            f"hermes compress --input id={trajectory.header.id} --output FILE makes one",
        )
    return trajectory, reader.get(version)


def side_by_side(original: Trajectory, compressed: Trajectory, column: int) -> str:
    notes: JSONObject = compressed.header.metadata["compression"]
    folds: dict[int, list[JSONObject]] = {}
    for fold_entry in notes["map"]:
        folds.setdefault(fold_entry["message"], []).append(fold_entry)
    lines = [
        click.style(
            f"{original.header.id}  ->  {compressed.header.id}\n"
            f"target {notes['target_max_tokens']} tokens of {printable(notes['tokenizer'])}, "
            f"strategy {notes['strategy']}   ~ folded   - left out",
            bold=True,
        )
    ]
    remaining = iter(compressed.messages)
    for index, message in enumerate(original.messages):
        entries = folds.get(index, [])
        removed = any(entry["kind"] in ("exchange", "instruction") for entry in entries)
        state = "left out" if removed else "folded" if entries else "same"
        lines += _message_pair(index, message, None if removed else next(remaining), state, entries, column)
    return "\n".join(lines)


def _message_pair(
    index: int, before: Message, after: Message | None, state: str, folds: list[JSONObject], column: int
) -> Iterator[str]:
    saved = ", ".join(
        f"{entry['kind']} {entry['original_tokens']} -> {entry['kept_tokens']}"
        + (" (protected turn)" if entry.get("protected") else "")
        for entry in folds
    )
    yield click.style(f"\n[{index}] {before.role.value}  {saved}".rstrip(), bold=True)
    left = _wrap_message(before, column)
    right = ["(unchanged)"] if state == "same" else _wrap_message(after, column) if after else ["(left out)"]
    for a, b in zip_longest(left, right, fillvalue=""):
        yield click.style(f"{_MARKS[state]} {a:<{column}} | {b}".rstrip(), fg=_COLOURS[state])


def _wrap_message(message: Message, column: int) -> list[str]:
    parts = [f"(thinking) {message.reasoning}"] if message.reasoning else []
    parts += [message.content] if message.content else []
    parts += [f"-> {call_text(call)}" for call in message.tool_calls]
    text = fold("\n".join(parts)).expandtabs(4)
    lines = [piece for line in text.splitlines() for piece in textwrap.wrap(line, column) or [""]]
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 1], f"… {len(lines) - _MAX_LINES + 1} lines more …"]
    return lines or ["(empty)"]
