"""Counting by words that a tokenizer never joins, so that each word is tokenised only once.

Byte-level tokenizers first split a text with a regular expression, and no token crosses a split. If that
expression is one of those below, ASCII text is split in the same way here, and the count of a text is
exactly the sum over its words. Text with other characters, on which regular expression engines differ, is
passed to the tokenizer unchanged, in stretches that end before a space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby

from hermes.core import JSONObject

Encode = Callable[[list[str]], list[int]]
"""Texts in, number of tokens of each out."""

_MEMORY_CHARS = 4_000_000
_BLOCK_CHARS = 100_000
"""Long texts are split a block at a time: a list of words takes much more memory than their text."""
_SPACE = re.compile(r"(?<=\S)(?= )")
"""None of the expressions joins a space with a character before it that is none."""

_GPT2 = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
# Digits are taken out first, one by one: the space before one is the end of a text.
_GPT2_DIGITS = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+|\s+(?![^\s0-9])|\s+", re.ASCII
)
_CL100K = re.compile(
    r"(?i:'(?:s|t|re|ve|m|ll|d))|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    re.ASCII,
)
_ENDING = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _ENDING: _CL100K,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _ENDING: _CL100K,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+"
    + _ENDING: _CL100K,
}
"""Of Qwen 2 and 3, of Llama 3, of Qwen 3.5; they differ in marks and in runs of digits."""


class WordCounts:
    """Counts texts by their words, and remembers these."""

    def __init__(self, encode: Encode, expression: re.Pattern[str]) -> None:
        self._encode = encode
        self._find = expression.findall
        self._known: dict[str, int] = {}
        self._known_chars = 0

    def __call__(self, texts: list[str]) -> list[int]:
        return [sum(map(self._count, _blocks(text))) for text in texts]

    def _count(self, block: str) -> int:
        words = self._find(block) if block.isascii() else self._mixed(block)
        new = set(words).difference(self._known)
        if new:
            self._learn(new, words)
        return sum(map(self._known.__getitem__, words))

    def _mixed(self, block: str) -> list[str]:
        words: list[str] = []
        for plain, parts in groupby(_SPACE.split(block), str.isascii):
            some = list(parts)
            words += self._find("".join(some)) if plain else some
        return words

    def _learn(self, new: set[str], words: list[str]) -> None:
        self._known_chars += sum(map(len, new))
        if self._known_chars > _MEMORY_CHARS:
            self._known.clear()
            new = set(words)
            self._known_chars = sum(map(len, new))
        unknown = list(new)
        self._known.update(zip(unknown, self._encode(unknown), strict=True))


def _blocks(text: str) -> Iterator[str]:
    start = 0
    while cut := _SPACE.search(text, start + _BLOCK_CHARS):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def word_expression(tokenizer: JSONObject) -> re.Pattern[str] | None:
    """What finds the words of plain text for a tokenizer in its library's form; None if nothing does."""
    # A token that is matched after the normaliser may span words.
    if any(token["normalized"] for token in tokenizer.get("added_tokens") or ()):
        return None
    if (tokenizer.get("normalizer") or {"type": "NFC"})["type"] != "NFC":
        return None
    if (tokenizer.get("model") or {}).get("dropout"):
        return None
    splitter = tokenizer.get("pre_tokenizer") or {}
    steps = splitter["pretokenizers"] if splitter.get("type") == "Sequence" else [splitter]
    match [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return _GPT2
        case [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ]:
            return _GPT2_DIGITS
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            return _SPLITS.get(pattern)
    return None
