"""Texts as sets of hash_words word sequences, for finding what two texts share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b

from hermes.store.encode import separate

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
