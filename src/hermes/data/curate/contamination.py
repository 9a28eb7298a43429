"""Contamination: a conversation that contains a stretch of an evaluation set's text.

A stretch is 13 words in a row (a whole item, if it is shorter, down to 5 words), in any message: of the
user, the model or a tool, and in the arguments of calls. Where a script does not separate words, a character
is one. Items of fewer words are too common to mean anything; they are counted, not compared. Rewordings and
translations are not found.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hermes.core import JSON, JSONObject
from hermes.data.curate.base import hash_words, words
from hermes.data.example import Example
from hermes.data.lines import read_lines
from hermes.errors import UsageError

RUN = 13
_LEAST = 5
_TEXT_FIELDS = ("prompt", "question", "problem", "instruction", "input", "task", "text", "query", "answer")


@dataclass
class EvalSet:
    """The stretches of an evaluation set, and where each comes from."""

    source: str
    stretches: dict[int, int] = field(default_factory=dict)
    """Hash → line of the file."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Length in words → number of items compared at that length."""
    too_short: int = 0

    def add(self, text: str, line: int) -> None:
        item_words = words(text)
        if len(item_words) < _LEAST:
            self.too_short += 1
            return
        size = min(RUN, len(item_words))
        self.lengths[size] += 1
        for start in range(len(item_words) - size + 1):
            self.stretches.setdefault(hash_words(item_words[start : start + size]), line)


@dataclass(frozen=True)
class Contamination:
    against: EvalSet

    name = "contamination"

    def settings(self) -> JSONObject:
        compared, short = self.against.lengths.total(), self.against.too_short
        return {"against": self.against.source, "items": compared, "too_short": short}

    def remove(self, example: Example) -> str | None:
        for message in example.messages:
            arguments = (call.argument_text for call in message.tool_calls)
            for text in (message.content, message.reasoning or "", *arguments):
                line = self._matching_line(words(text))
                if line is not None:
                    return f"contains line {line} of {self.against.source}"
        return None

    def _matching_line(self, text_words: list[str]) -> int | None:
        for size in self.against.lengths:
            for start in range(len(text_words) - size + 1):
                line = self.against.stretches.get(hash_words(text_words[start : start + size]))
                if line is not None:
                    return line
        return None


def read_eval_set(path: Path) -> EvalSet:
    """A JSONL file of items (its usual text fields, else every text in it) or plain text, a line each."""
    against = EvalSet(path.name)
    if path.suffix in (".jsonl", ".ndjson", ".json"):
        for line in read_lines(path):
            if line.row is None:
                raise UsageError(f"{path}:{line.number}: {line.problem}", "repair the line or remove it")
            for text in _texts(line.row):
                against.add(text, line.number)
        return against
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "name a JSONL or text file") from error
    for number, text in enumerate(lines, 1):
        if text.strip():
            against.add(text, number)
    return against


def _texts(row: JSONObject) -> list[str]:
    named = [row[name] for name in _TEXT_FIELDS if isinstance(row.get(name), str)]
    return named or _all_texts(row)


def _all_texts(value: JSON) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in _all_texts(item)]
