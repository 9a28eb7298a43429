"""Curation: rules that keep an example out of a dataset, each with the reason for each one it removes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Protocol

from hermes.core import JSONObject, Role
from hermes.data.example import Example
from hermes.store.encode import separate


class Rule(Protocol):
    """Asked about every example once, oldest first; may remember those before."""

    @property
    def name(self) -> str: ...

    def settings(self) -> JSONObject:
        """Its settings, for the manifest."""
        ...

    def remove(self, example: Example) -> str | None:
        """Why it is to go; None if it may stay."""
        ...


class Removal(NamedTuple):
    id: str
    rule: str
    why: str

    def to_json(self) -> JSONObject:
        return self._asdict()


@dataclass
class Curation:
    """Rules in order: the first that objects decides, and later ones never see the example."""

    rules: Sequence[Rule]
    removed: list[Removal] = field(default_factory=list)

    def keeps(self, example: Example) -> bool:
        for rule in self.rules:
            reason = rule.remove(example)
            if reason is not None:
                self.removed.append(Removal(example.id, rule.name, reason))
                return False
        return True


def dialogue_text(example: Example) -> str:
    """The text of user and assistant messages and their calls, without system prompt and tool results."""
    parts = []
    for message in example.messages:
        if message.role in (Role.USER, Role.ASSISTANT):
            parts.append(message.content)
            parts += [f"{call.name} {call.arguments}" for call in message.tool_calls]
    return "\n".join(part for part in parts if part)


def prose(example: Example) -> str:
    """What user and assistant wrote for each other to read."""
    wrote = (message.content for message in example.messages if message.role in (Role.USER, Role.ASSISTANT))
    return "\n".join(wrote)


_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Lower-cased words; characters where the script does not separate words."""
    return _WORD.findall(separate(text.lower()))


def hash_words(sequence: list[str]) -> int:
    text = "\x1f".join(sequence).encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def shingles(text: str, size: int) -> Iterator[int]:
    """The hash of every run of `size` words; of the whole text if it is shorter."""
    text_words = words(text)
    for start in range(max(len(text_words) - size + 1, 1)):
        yield hash_words(text_words[start : start + size])
