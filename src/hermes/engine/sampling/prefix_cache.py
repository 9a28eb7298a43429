"""The prefix cache: which tokens the slots hold, by policy.

Every slot that holds tokens has an entry here, also while its sequence is running. Entries are looked up by
the hash of their whole prompt, else by chained hashes of whole blocks of tokens: in a large batch hundreds of
prompts have the same blocks, and those of a group are equal to the end. They are then compared token by
token, so a hash never decides. Keys and values depend on the weights, so a policy only matches its own
entries. Finished entries are evicted when their memory is needed, least recently used first.
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
"""Tokens of a hashed block; a shorter common prefix is not matched."""

_MAX_CANDIDATES = 8
"""How many entries with the same blocks are compared; in a large batch hundreds may share a prefix."""


@dataclass(slots=True, eq=False)
class CachedSlot:
    """The tokens that one slot holds, or will hold once they are computed."""

    policy_id: str | None
    slot: KvSlot
    tokens: Ints
    ready: int = 0
    """How many of the tokens have their keys and values in the slot."""
    hashes: list[int] = field(default_factory=list)
    prompt_hash: int | None = None
    """The hash of the tokens that it was indexed with first, without the last, which is computed anew."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    entry: CachedSlot
    tokens: int
    """Length of the common prefix; it may be longer than what is ready."""

    @property
    def is_pending(self) -> bool:
        """The prefix is still being computed. An entry that was removed has no hashes."""
        return bool(self.entry.hashes) and self.tokens > self.entry.ready


class PrefixIndex:
    def __init__(self) -> None:
        self._blocks: dict[int, dict[int, CachedSlot]] = {}
        self._prompts: dict[int, dict[int, CachedSlot]] = {}
        self._finished: OrderedDict[int, CachedSlot] = OrderedDict()
        """By `id`, least recently used first."""

    def __len__(self) -> int:
        """The number of finished entries."""
        return len(self._finished)

    def add(self, entry: CachedSlot) -> None:
        """Indexes all tokens of an entry; blocks that were indexed before are not hashed again."""
        if entry.prompt_hash is None:
            entry.prompt_hash = _prompt_hash(entry.policy_id, entry.tokens[:-1])
            self._prompts.setdefault(entry.prompt_hash, {})[id(entry)] = entry
        for key in _hashes(entry.policy_id, entry.tokens, entry.hashes):
            entry.hashes.append(key)
            self._blocks.setdefault(key, {})[id(entry)] = entry

    def remove(self, entry: CachedSlot) -> None:
        self._finished.pop(id(entry), None)
        if entry.prompt_hash is not None:
            _discard(self._prompts, entry.prompt_hash, entry)
            entry.prompt_hash = None
        for key in entry.hashes:
            _discard(self._blocks, key, entry)
        entry.hashes.clear()

    def finish(self, entry: CachedSlot, tokens: Ints) -> None:
        """Marks the entry's sequence as finished: it can be evicted from now on.

        Its slot holds `tokens`, which start with the tokens of the entry.
        """
        entry.tokens, entry.ready = tokens, len(tokens)
        self.add(entry)
        self._finished[id(entry)] = entry

    def find(self, policy_id: str | None, prompt: Ints, limit: int) -> PrefixMatch | None:
        """The entry with the longest common prefix with prompt[:limit]; of several, the one most ready."""
        prefix = prompt[:limit]
        candidates = self._prompts.get(_prompt_hash(policy_id, prefix)) or self._deepest(policy_id, prefix)
        best: PrefixMatch | None = None
        for entry in islice(candidates.values(), _MAX_CANDIDATES):
            match = PrefixMatch(entry, _common_prefix(entry.tokens, prefix))
            if entry.policy_id == policy_id and (best is None or _match_rank(match) > _match_rank(best)):
                best = match
            if min(match.tokens, entry.ready) == limit:
                break
        return best if best and best.tokens >= BLOCK else None

    def _deepest(self, policy_id: str | None, prefix: Ints) -> dict[int, CachedSlot]:
        """The entries that have the most whole blocks of the prefix."""
        deepest: dict[int, CachedSlot] = {}
        for key in _hashes(policy_id, prefix):
            entries = self._blocks.get(key)
            if not entries:
                break
            deepest = entries
        return deepest

    def touch(self, entry: CachedSlot) -> None:
        """Marks a finished entry as the most recently used."""
        if id(entry) in self._finished:
            self._finished.move_to_end(id(entry))

    def evict(self, keep: CachedSlot | None = None) -> CachedSlot | None:
        """Removes the least recently used finished entry other than `keep`, and returns it."""
        for entry in self._finished.values():
            if entry is not keep:
                self.remove(entry)
                return entry
        return None

    def finished_of(self, policy_id: str | None) -> list[CachedSlot]:
        """The finished entries of one policy."""
        return [entry for entry in self._finished.values() if entry.policy_id == policy_id]


def _hashes(policy_id: str | None, tokens: Ints, computed: Sequence[int] = ()) -> Iterator[int]:
    """A chained hash for every whole block of tokens after those in `computed`."""
    key = computed[-1] if computed else hash((policy_id, BLOCK))
    for start in range(len(computed) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        key = hash((key, tokens[start : start + BLOCK].tobytes()))
        yield key


def _prompt_hash(policy_id: str | None, prefix: Ints) -> int:
    return hash((policy_id, prefix.tobytes()))


def _discard(index: dict[int, dict[int, CachedSlot]], key: int, entry: CachedSlot) -> None:
    entries = index.get(key)
    if entries is not None:
        entries.pop(id(entry), None)
        if not entries:
            del index[key]


def _match_rank(match: PrefixMatch) -> tuple[int, int]:
    return match.tokens, match.entry.ready


def _common_prefix(left: Ints, right: Ints) -> int:
    size = min(len(left), len(right))
    different = np.flatnonzero(left[:size] != right[:size])
    return int(different[0]) if len(different) else size
