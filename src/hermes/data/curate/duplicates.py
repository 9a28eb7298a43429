"""Near-duplicates by MinHash: of conversations with nearly the same text, the oldest stays.

Compared is the text of user and assistant with their calls, as runs of five words. Each text is reduced
to 128 minima of one hash (one-permutation MinHash); texts that agree in one of 32 bands are compared, and
the share of equal minima estimates the Jaccard similarity with a standard error of about 0.04. The index
holds about 2 KB a conversation.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hermes.core import JSONObject
from hermes.data.curate.base import dialogue_text, shingles
from hermes.data.example import Example

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
