"""Which prompts are already in the cache, for whom, and how far.

Every slot that holds tokens has an entry here, also while its sequence is running. Entries are found by
chained hashes of whole blocks of tokens and then compared token by token, so a hash never decides. Keys and
values depend on the weights: a policy only ever finds its own. Finished entries stay until their memory is
needed, the longest unused first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from hermes.engine.attention.kv_cache import KvSlot
from hermes.engine.types import Ints

BLOCK = 16
"""Shorter common beginnings are not worth finding."""

_CANDIDATES = 8
"""How many entries with the same blocks are compared; in a large batch hundreds may share a beginning."""


@dataclass(slots=True, eq=False)
class CachedSlot:
    """What one slot holds, or will hold."""

    policy_id: str | None
    slot: KvSlot
    tokens: Ints
    ready: int = 0
    """How many of the tokens' keys and values are there."""
    hashes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Match:
    entry: CachedSlot
    tokens: int
    """Length of the common beginning; it may be longer than what is ready."""


class PrefixIndex:
    def __init__(self) -> None:
        self._blocks: dict[int, dict[int, CachedSlot]] = {}
        self._kept: OrderedDict[int, CachedSlot] = OrderedDict()

    def __len__(self) -> int:
        """How many finished entries are kept."""
        return len(self._kept)

    def add(self, entry: CachedSlot) -> None:
        """Makes an entry findable, from its first token to its last; what it had before stays as it is."""
        known = entry.hashes
        for key in _hashes(entry.policy_id, entry.tokens, known):
            known.append(key)
            self._blocks.setdefault(key, {})[id(entry)] = entry

    def remove(self, entry: CachedSlot) -> None:
        self._kept.pop(id(entry), None)
        for key in entry.hashes:
            found = self._blocks.get(key)
            if found is not None:
                found.pop(id(entry), None)
                if not found:
                    del self._blocks[key]
        entry.hashes.clear()

    def keep(self, entry: CachedSlot, tokens: Ints) -> None:
        """The entry's sequence is finished and its slot holds `tokens`, which begin with those it had.

        It may be evicted from now on.
        """
        entry.tokens, entry.ready = tokens, len(tokens)
        self.add(entry)
        self._kept[id(entry)] = entry

    def find(self, policy_id: str | None, prompt: Ints, limit: int) -> Match | None:
        """The entry with the longest beginning in common with prompt[:limit]; of equals, the most ready."""
        deepest: dict[int, CachedSlot] = {}
        for key in _hashes(policy_id, prompt[:limit]):
            found = self._blocks.get(key)
            if not found:
                break
            deepest = found
        best: Match | None = None
        for entry in islice(deepest.values(), _CANDIDATES):
            match = Match(entry, _common(entry.tokens, prompt[:limit]))
            if entry.policy_id == policy_id and (best is None or _usefulness(match) > _usefulness(best)):
                best = match
            if min(match.tokens, entry.ready) == limit:
                break
        return best if best and best.tokens >= BLOCK else None

    def touch(self, entry: CachedSlot) -> None:
        """It was useful just now."""
        if id(entry) in self._kept:
            self._kept.move_to_end(id(entry))

    def evict(self, spare: CachedSlot | None = None) -> CachedSlot | None:
        """Forgets the longest unused finished entry but `spare`, and returns it."""
        for entry in self._kept.values():
            if entry is not spare:
                self.remove(entry)
                return entry
        return None

    def of_policy(self, policy_id: str | None) -> list[CachedSlot]:
        """The finished entries of one policy."""
        return [entry for entry in self._kept.values() if entry.policy_id == policy_id]


def _hashes(policy_id: str | None, tokens: Ints, known: Sequence[int] = ()) -> Iterator[int]:
    """One for every whole block, chained; from where `known`, the first of them, end."""
    key = known[-1] if known else hash((policy_id, BLOCK))
    for start in range(len(known) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        key = hash((key, tokens[start : start + BLOCK].tobytes()))
        yield key


def _usefulness(match: Match) -> tuple[int, int]:
    return match.tokens, match.entry.ready


def _common(left: Ints, right: Ints) -> int:
    size = min(len(left), len(right))
    different = np.flatnonzero(left[:size] != right[:size])
    return int(different[0]) if len(different) else size
