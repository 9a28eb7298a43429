"""Curation: rules that keep an example out of a dataset, each with the reason for each one it removes.

The language of a conversation is found by script, and for Latin script by its commonest words. Simple on
purpose: it distinguishes the languages below in text of a few sentences and returns 'unknown' for
anything shorter, mixed or unlisted. Code, URLs and tool results are ignored.

Near-duplicates are found by MinHash: of conversations with nearly the same text, the oldest stays. Compared
is the text of user and assistant with their calls, as runs of five words. Each text is reduced to 128 minima
of one hash (one-permutation MinHash); texts that agree in one of 32 bands are compared, and the share of
equal minima estimates the Jaccard similarity with a standard error of about 0.04. The index holds about 2 KB
a conversation.

A contaminated conversation contains a stretch of an evaluation set's text. A stretch is 13 words in a row (a
whole item, if it is shorter, down to 5 words), in any message: of the user, the model or a tool, and in the
arguments of calls, also where JSON quotes it. Where a script does not separate words, a character is one.
Items of fewer words are too common to mean anything; they are counted, not compared. Rewordings and
translations are not found.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

from hermes.core import JSON, JSONObject, Role, StepKind
from hermes.data.example import Example
from hermes.data.lines import read_lines
from hermes.errors import UsageError
from hermes.store.encode import search_text, searchable


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
    """The text that user and assistant wrote for each other to read."""
    wrote = (message.content for message in example.messages if message.role in (Role.USER, Role.ASSISTANT))
    return "\n".join(wrote)


_WORD = re.compile(r"\w+")
_ESCAPED_SPACE = re.compile(r"\\+[nrt]")


def words(text: str) -> list[str]:
    """Lower-cased words, also in text that JSON quotes; characters where a script does not separate words."""
    return _WORD.findall(searchable(_ESCAPED_SPACE.sub(" ", text)).lower())


def hash_words(sequence: list[str]) -> int:
    text = "\x1f".join(sequence).encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def shingles(text: str, size: int) -> Iterator[int]:
    """The hash of every run of `size` words; of the whole text if it is shorter."""
    text_words = words(text)
    for start in range(max(len(text_words) - size + 1, 1)):
        yield hash_words(text_words[start : start + size])


@dataclass(frozen=True)
class Length:
    """Bounds on model calls and on characters; None means no bound."""

    min_turns: int | None = None
    max_turns: int | None = None
    max_chars: int | None = None
    """Counts everything in the conversation, system prompt and tool results included."""

    name = "length"

    def settings(self) -> JSONObject:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def remove(self, example: Example) -> str | None:
        turns = example.trajectory.turns
        if self.min_turns is not None and turns < self.min_turns:
            return f"{turns} turns, fewer than {self.min_turns}"
        if self.max_turns is not None and turns > self.max_turns:
            return f"{turns} turns, more than {self.max_turns}"
        if self.max_chars is not None:
            chars = sum(_chars(step.message.to_json()) for step in example.trajectory.steps)
            if chars > self.max_chars:
                return f"{chars} characters, more than {self.max_chars}"
        return None


@dataclass(frozen=True)
class ToolSuccess:
    """At least this share of tool calls must have worked; one without calls stays."""

    share: float

    name = "tool-success"

    def settings(self) -> JSONObject:
        return asdict(self)

    def remove(self, example: Example) -> str | None:
        results = [
            step.result for step in example.trajectory.steps if step.kind is StepKind.TOOL and step.result
        ]
        worked = sum(result.ok for result in results)
        if results and worked / len(results) < self.share:
            return f"{worked} of {len(results)} tool calls worked"
        return None


def _chars(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_chars, value.values()))
    return sum(map(_chars, value)) if isinstance(value, list) else 0


UNKNOWN = "unknown"
_SCRIPTS = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "CJK": "zh",
    "CYRILLIC": "ru",
    "ARABIC": "ar",
    "HEBREW": "he",
    "GREEK": "el",
    "DEVANAGARI": "hi",
    "THAI": "th",
}
_WORDS = {
    "en": "the of and to in is that it for you with on this be are was have not what how from by or as at",
    "de": "der die das und ist nicht ein eine zu mit den von auf für im sich auch wie wird ich es dem als",
    "fr": "le la les de et est des une un du pour dans que qui pas sur avec ce il vous au plus par je y",
    "es": "el la los las y es de que en un una por con para no se del lo como más su al está son",
    "it": "il la di che e è un una per non in sono del con le si da come più della nel anche gli",
    "pt": "o a os as e é de que em um uma para com não se do da por mais como ao na no você são",
    "nl": "de het een en van is dat niet in op te voor met zijn die ook aan er maar om ik je wat",
}
_PROFILES = {code: frozenset(words.split()) for code, words in _WORDS.items()}
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+|<[^<>\n]{1,80}>", re.DOTALL)
_TOKEN = re.compile(r"[^\W\d_]+")
_LOOKED_AT_CHARS = 20_000
_ENOUGH_WORDS = 4
_ENOUGH_LETTERS = 4


def detect(text: str) -> str:
    """An ISO 639-1 code, or 'unknown'."""
    plain = _CODE.sub(" ", text[:_LOOKED_AT_CHARS]).lower()
    scripts = Counter(_script(char) for char in plain if char.isalpha())
    letters = scripts.total()
    if letters < _ENOUGH_LETTERS:
        return UNKNOWN
    if scripts["ja"] > letters / 20:
        return "ja"  # Japanese mixes its own scripts with Chinese characters
    script, count = scripts.most_common(1)[0]
    if script != "latin":
        return script if count > letters / 2 else UNKNOWN
    return _latin(_TOKEN.findall(plain))


@dataclass(frozen=True)
class Language:
    """Only conversations in these languages stay; those of unknown language are removed."""

    codes: tuple[str, ...]

    name = "language"

    def settings(self) -> JSONObject:
        return {"codes": list(self.codes)}

    def remove(self, example: Example) -> str | None:
        language = detect(prose(example))
        return None if language in self.codes else f"language: {language}"


def _script(char: str) -> str:
    name = unicodedata.name(char, "")
    return next((code for script, code in _SCRIPTS.items() if name.startswith(script)), "latin")


def _latin(words: list[str]) -> str:
    scores = {code: sum(word in profile for word in words) for code, profile in _PROFILES.items()}
    (first, best), (_, second) = sorted(scores.items(), key=lambda item: -item[1])[:2]
    clear = best > second and best >= max(2, len(words) // 20)
    return first if len(words) >= _ENOUGH_WORDS and clear else UNKNOWN


_BINS = 128
_BANDS = 32
_ROWS = _BINS // _BANDS
_SIZE = 5
_STEP = 0x9E3779B97F4A7C15
"""Odd and without structure, so that a minimum borrowed from a neighbour differs from the neighbour's own."""
Signature = tuple[int, ...]


@dataclass
class NearDuplicates:
    threshold: float
    """Similarity from which two are the same, 0 to 1."""
    name: str = "near-duplicate"
    _bands: dict[tuple[int, Signature], list[int]] = field(default_factory=lambda: defaultdict(list))
    _kept: list[tuple[str, Signature]] = field(default_factory=list)

    def settings(self) -> JSONObject:
        return {"threshold": self.threshold}

    def remove(self, example: Example) -> str | None:
        signature = sign(dialogue_text(example))
        bands = [(at, signature[at * _ROWS : (at + 1) * _ROWS]) for at in range(_BANDS)]
        candidates = sorted({number for band in bands for number in self._bands.get(band, ())})
        best, original = 0.0, ""
        for number in candidates:
            likeness = similarity(signature, self._kept[number][1])
            if likeness > best:
                best, original = likeness, self._kept[number][0]
        if best >= self.threshold:
            return f"{best:.2f} like {original}"
        for band in bands:
            self._bands[band].append(len(self._kept))
        self._kept.append((example.id, signature))
        return None


def sign(text: str) -> Signature:
    """The minima of one hash in each of its bins; an empty bin borrows from the next that is not."""
    minima: list[int | None] = [None] * _BINS
    for value in shingles(text, _SIZE):
        bin_index, rest = value % _BINS, value // _BINS
        before = minima[bin_index]
        if before is None or rest < before:
            minima[bin_index] = rest
    return tuple(_bin_value(minima, bin_index) for bin_index in range(_BINS))


def similarity(left: Signature, right: Signature) -> float:
    return sum(a == b for a, b in zip(left, right, strict=True)) / _BINS


def _bin_value(minima: list[int | None], bin_index: int) -> int:
    for distance in range(_BINS):
        value = minima[(bin_index + distance) % _BINS]
        if value is not None:
            return (value + distance * _STEP) & (2**64 - 1)
    return 0


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
            line = self._matching_line(words(search_text(message)))
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
