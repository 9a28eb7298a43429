"""The keyboard loop of `hermes rate queue`: one key, one decision."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import click

from hermes.cli import question
from hermes.cli.rating.record import describe, open_desk, rater_name
from hermes.cli.render import render_message, render_step
from hermes.cli.tables import columns
from hermes.config.load import load
from hermes.config.paths import db_path
from hermes.core import Message, Rating, StepKind, Trajectory
from hermes.data.diff import compare
from hermes.data.preference.pairs import rest_of_turn
from hermes.data.where import WITHOUT_TRAINING
from hermes.errors import UsageError
from hermes.ratings import QueueItem, QueueRule, QueueSettings, RatingDesk, RatingDraft, RatingMode
from hermes.safety.text import printable
from hermes.store import Filter, Reader

if TYPE_CHECKING:
    from hermes.cli.rating.options import QueueOptions

_ARROWS = {"\x1b[D": "a", "\x1b[C": "b", "\x1b[1;2D": "A", "\x1b[1;2C": "B"}
_KEYS: dict[RatingMode, dict[str, tuple[str, int | None]]] = {
    RatingMode.THUMB: {"y": ("good", None), "n": ("bad", None)},
    RatingMode.SCORE: {key: (key, None) for key in "12345"},
    RatingMode.PAIR: {
        "a": ("first", 2),
        "b": ("second", 2),
        "A": ("first", 3),
        "B": ("second", 3),
        "=": ("tie", None),
        "x": ("both_bad", None),
    },
    RatingMode.STEP: {
        "+": ("good", None),
        "-": ("bad", None),
        "0": ("neutral", None),
        "b": ("first_bad", None),
    },
}
_HELP = {
    RatingMode.THUMB: "y good  n bad",
    RatingMode.SCORE: "1 to 5",
    RatingMode.PAIR: "a or ← first  b or → second  A B (Shift) much better  = equal  x both bad",
    RatingMode.STEP: "+ good  - bad  0 neutral  b first bad step",
}
_ALWAYS = "s skip  u undo  c comment  q quit  ? help"
_ESCAPE_S = 0.05
_MOST_BYTES = 16


def make_queue(conditions: Filter, options: QueueOptions, as_json: bool) -> None:
    """Makes the queue if it is new; continues it if nothing else is said about it."""
    config, name = load(), options.name
    filters = {key: value for key, value in asdict(conditions).items() if value}
    names = {"rule", "mode", "seed", "raters_per_item", "repeat_share", "limit", "where", "rated_too"}
    stated = {key: value for key, value in options.model_dump(include=names).items() if value}
    with open_desk(config) as desk:
        exists = name in desk.queues()
        if exists and not stated and not filters:
            settings = desk.settings(name)
        else:
            typed = {
                "rule": QueueRule(stated.get("rule", "random")),
                "mode": RatingMode(stated.get("mode", "thumb")),
            }
            if not filters and "where" not in stated:
                stated["where"] = (WITHOUT_TRAINING,)
            settings = QueueSettings(filters=filters, **{**stated, **typed})
        added = desk.create_queue(name, settings)
        progress = desk.progress(name)
    if not progress.items:
        raise UsageError(
            f"the queue '{name}' is empty: the rule '{settings.rule.value}' selects nothing",
            "record something first (hermes -q …), or choose another rule or wider filters (--source env: "
            "rollouts of training)",
        )
    text = f"queue {printable(name)}: {progress.items} items, {progress.finished} done, {added} new"
    click.echo(json.dumps(asdict(progress)) if as_json else text)


def delete_queue(name: str, *, yes: bool, as_json: bool) -> None:
    with open_desk(load()) as desk:
        progress = desk.progress(name)
        if not as_json:
            facts = f"{progress.items} items; its {progress.ratings} ratings stay"
            click.echo(f"queue {printable(name)}: {facts}")
        question.confirm_deletion(f"the queue {printable(name)}", yes=yes)
        desk.delete_queue(name)
    click.echo(json.dumps({"deleted": {"queues": 1}}) if as_json else "deleted: 1 queue")


def list_queues(as_json: bool) -> None:
    with open_desk(load()) as desk:
        queues = [desk.progress(name) for name in desk.queues()]
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in queues]))
    elif not queues:
        click.echo("there is no queue yet; hermes rate queue makes one")
    else:
        table = [("queue", "rule", "mode", "items", "done", "in hand", "ratings")]
        table += [
            (
                printable(entry.name),
                entry.settings.rule.value,
                entry.settings.mode.value,
                str(entry.items),
                str(entry.finished),
                str(entry.leased),
                str(entry.ratings),
            )
            for entry in queues
        ]
        click.echo(columns(table))


def rate_items(name: str, rater: str | None) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "hermes rate queue reads single keys from a terminal", "use 'hermes rate ID VERDICT'"
        )
    config = load()
    with open_desk(config) as desk, Reader(db_path(config.home)) as reader, key_mode():
        count = KeyboardRater(desk, reader, name, rater_name(rater)).run()
    click.echo(f"{count} ratings; hermes rate stats shows how raters agree")


@dataclass
class KeyboardRater:
    """One sitting of one rater."""

    desk: RatingDesk
    reader: Reader
    queue: str
    rater: str
    done: list[Rating] = field(default_factory=list)
    """The ratings of this sitting that were not undone."""
    comment: str | None = None
    """For the next verdict."""

    def run(self) -> int:
        """Until nothing is left or the rater quits; the number of ratings."""
        while (item := self.desk.next_item(self.queue, self.rater)) is not None:
            try:
                goes_on = self._rate(item)
            except BaseException:
                self.desk.release(item.queue, item.item, self.rater)
                raise
            if not goes_on:
                self.desk.release(item.queue, item.item, self.rater)
                return len(self.done)
        click.echo("nothing is left to rate in this queue")
        return len(self.done)

    def _rate(self, item: QueueItem) -> bool:
        """False: the rater quits."""
        trajectory = self.reader.get(item.trajectory_id)
        for step in steps_to_rate(trajectory) if item.mode is RatingMode.STEP else [None]:
            click.clear()
            click.echo(show_item(self.reader, item, step))
            decision = self._decide(item, step)
            if decision == "quit":
                return False
            if decision in ("next", "undone", "first_bad"):
                return True
        return True

    def _decide(self, item: QueueItem, step: int | None) -> str:
        started = time.monotonic()
        while True:
            click.echo(click.style(f"{_HELP[item.mode]}  |  {_ALWAYS} ", dim=True), nl=False)
            key = _ARROWS.get(key := read_key(), key)
            click.echo(printable(key))
            if key in ("q", "\x04"):
                return "quit"
            if key == "s":
                self.desk.release(item.queue, item.item, self.rater, skip=True)
                return "next"
            if key == "u":
                if self._undo(item):
                    return "undone"
            elif key == "c":
                with line_mode():
                    self.comment = click.prompt("comment", default="", show_default=False) or None
            elif key in _KEYS[item.mode]:
                word, strength = _KEYS[item.mode][key]
                elapsed_ms = (time.monotonic() - started) * 1000
                self._record(item, step, word, strength, elapsed_ms)
                return word if word == "first_bad" else "rated"

    def _record(
        self, item: QueueItem, step: int | None, word: str, strength: int | None, elapsed_ms: float
    ) -> None:
        draft = RatingDraft(
            item.trajectory_id,
            word,
            self.rater,
            step_index=step,
            per_step=step is not None,
            strength=strength,
            comment=self.comment,
            elapsed_ms=elapsed_ms,
            queue=item.queue,
            item=item.item,
        )
        if item.other_id is not None:
            first_is_a = item.shown_first == item.trajectory_id
            words = {"first": "a" if first_is_a else "b", "second": "b" if first_is_a else "a"}
            draft = replace(
                draft, verdict=words.get(word, word), other_id=item.other_id, shown_first=item.shown_first
            )
        self.done.append(self.desk.record(draft))
        self.comment = None
        click.echo(describe(self.done[-1]))

    def _undo(self, item: QueueItem) -> bool:
        if not self.done:
            click.echo("there is nothing to undo in this sitting")
            return False
        last = self.done.pop()
        self.desk.undo(last.id, self.rater)
        self.desk.release(item.queue, item.item, self.rater)
        click.echo(f"taken back: {describe(last)}")
        return True


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


@contextmanager
def key_mode() -> Iterator[None]:
    """Keys arrive one by one and are not echoed. Ctrl-C still interrupts."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSANOW)  # what was typed ahead stays
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


@contextmanager
def line_mode() -> Iterator[None]:
    """Inside `key_mode`: lines, edited and echoed as usual."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    lines = termios.tcgetattr(descriptor)
    lines[3] |= termios.ICANON | termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, lines)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def read_key() -> str:
    """One key; an arrow is its whole escape sequence; Ctrl-D if the terminal is gone."""
    descriptor = sys.stdin.fileno()
    data = os.read(descriptor, 1)
    if data == b"\x1b":
        while len(data) < _MOST_BYTES and select.select([descriptor], [], [], _ESCAPE_S)[0]:
            data += os.read(descriptor, 1)
            if len(data) > 2 and data[-1:].isalpha():
                break
    return data.decode("ascii", "replace") or "\x04"
