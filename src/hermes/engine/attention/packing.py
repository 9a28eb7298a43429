"""Which tokens are computed together, and which only once. Pure planning over numpy; no torch.

Sequences are laid end to end without padding. Where several begin with the same tokens, these are computed
once: the pack is a forest in depth-first order, every node a run of tokens, so that what attends to a node
(everything below it) is one contiguous run right behind it. A token's hidden state depends only on the
tokens before it, so sharing changes no result; what a loss wants of a shared token is asked per datum,
through `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from hermes.engine.types import Ints

MIN_SHARED = 8
"""A shorter common run is computed again: attending to it separately would cost more than it saves."""

MAX_DEPTH = 8
"""Nodes above a token, itself excluded: each is one more attention to merge."""


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens [start, end) of a pack, attended to by themselves and by [end, below)."""

    start: int
    end: int
    below: int
    depth: int
    """How many nodes lie above it."""


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """One micro-batch."""

    tokens: Ints
    positions: Ints
    nodes: tuple[Node, ...]
    members: tuple[int, ...]
    """Indices of the sequences in it."""
    rows: tuple[Ints, ...]
    """Per member, where each of its positions lies in `tokens`."""


@dataclass(slots=True)
class _Forest:
    """The nodes of a pack, as plain numbers; what lies where is worked out for all of them at once."""

    lengths: Sequence[int]
    shared: Sequence[int]
    """Common prefix of each sequence, in the pack's order, with the one before it."""
    spans: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Per node: the sequence its tokens are from, from which position, to which, and its depth."""
    belows: list[int] = field(default_factory=list)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    """Per sequence, its nodes."""
    size: int = 0

    def add(self, first: int, last: int, start: int, above: tuple[int, ...]) -> None:
        """Lay out sequences [first, last), whose first `start` tokens lie in the nodes above."""
        for low, high in self._runs(first, last, start, len(above)):
            end = min(self.shared[low + 1 : high]) if high - low > 1 else self.lengths[low]
            path = (*above, len(self.spans))
            self.spans.append((low, start, end, len(above)))
            self.size += end - start
            self.belows.append(self.size)
            if high - low > 1:
                self.add(low, high, end, path)
                self.belows[path[-1]] = self.size
            else:
                self.paths.append(path)

    def _runs(self, first: int, last: int, start: int, depth: int) -> Iterator[tuple[int, int]]:
        low = first
        for index in range(first + 1, last + 1):
            if index == last or depth == MAX_DEPTH or self.shared[index] - start < MIN_SHARED:
                yield low, index
                low = index


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """start, start + 1, …, length of them, for each pair, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def pack(sequences: Sequence[Ints], budget_tokens: int, *, share: bool = True) -> list[Pack]:
    """Micro-batches of at most `budget_tokens` computed tokens; a longer sequence gets one of its own."""
    order, shared = _sorted(sequences) if share else (list(range(len(sequences))), [0] * len(sequences))
    packs: list[Pack] = []
    low, size = 0, 0
    for index, which in enumerate(order):
        length = len(sequences[which])
        more = length - (shared[index] if index > low else 0)
        if index > low and size + more > budget_tokens:
            packs += _fit(sequences, order[low:index], shared[low:index], budget_tokens)
            low, size, more = index, 0, length
        size += more
    return packs + (_fit(sequences, order[low:], shared[low:], budget_tokens) if order else [])


def _fit(
    sequences: Sequence[Ints], order: Sequence[int], shared: Sequence[int], budget_tokens: int
) -> list[Pack]:
    """One pack, or more where not all that could be shared was worth it and the budget is exceeded."""
    built = _build(sequences, order, shared)
    if len(built.tokens) <= budget_tokens or len(order) == 1:
        return [built]
    half = len(order) // 2
    parts = ((order[:half], shared[:half]), (order[half:], shared[half:]))
    return [one for part in parts for one in _fit(sequences, *part, budget_tokens)]


def pack_plainly(sequences: Sequence[Ints]) -> Pack:
    """All of them in one pack, in order, nothing shared."""
    return _build(sequences, range(len(sequences)), [0] * len(sequences))


def _build(sequences: Sequence[Ints], order: Sequence[int], shared: Sequence[int]) -> Pack:
    """The pack of sequences in an order where those that begin alike are neighbours."""
    kept, common, inside = _without_prefixes(sequences, order, shared)
    chosen = [sequences[index] for index in kept]
    lengths = [len(one) for one in chosen]
    forest = _Forest(lengths, common)
    forest.add(0, len(kept), 0, ())
    source, first, last, depths = np.array(forest.spans, dtype=np.int64).T
    sizes = last - first
    ends = np.cumsum(sizes)
    starts = ends - sizes
    begins = np.cumsum(lengths) - lengths
    path = np.fromiter(chain.from_iterable(forest.paths), np.int64)
    rows = ranges(starts[path], sizes[path])
    begin = dict(zip(kept, begins.tolist(), strict=True))
    spans = (starts.tolist(), ends.tolist(), forest.belows, depths.tolist())
    return Pack(
        tokens=np.concatenate(chosen)[ranges(begins[source] + first, sizes)],
        positions=ranges(first, sizes),
        nodes=tuple(map(Node, *spans)),
        members=tuple(order),
        rows=tuple(rows[(at := begin[inside[index]]) : at + len(sequences[index])] for index in order),
    )


def _without_prefixes(
    sequences: Sequence[Ints], order: Sequence[int], shared: Sequence[int]
) -> tuple[list[int], list[int], dict[int, int]]:
    """Leaves out what the next one begins with: those kept, what each shares with the kept one before, and
    for every sequence the kept one it lies in."""
    kept: list[int] = []
    common: list[int] = []
    inside: dict[int, int] = {}
    waiting: list[int] = []
    least = 0
    for place, index in enumerate(order):
        least = min(least, shared[place]) if waiting else shared[place]
        waiting.append(index)
        last = place + 1 == len(order)
        if last or shared[place + 1] < len(sequences[index]):
            kept.append(index)
            common.append(least)
            inside.update(dict.fromkeys(waiting, index))
            waiting = []
    return kept, common, inside


def _sorted(sequences: Sequence[Ints]) -> tuple[list[int], list[int]]:
    """Indices in lexicographic order, and what each shares with its predecessor."""
    if not sequences:
        return [], []
    flat = np.concatenate(sequences)
    ends = np.cumsum([len(one) for one in sequences])
    # Big-endian bytes sort like the numbers they spell, and comparing them is one memcmp.
    spelled = flat.astype(">i4").tobytes()
    bounds = [0, *(4 * ends).tolist()]
    keys = [spelled[start:end] for start, end in pairwise(bounds)]
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    return order, [0, *_common(flat, ends, np.array(order))]


def _common(flat: Ints, ends: Ints, order: Ints) -> list[int]:
    """How much each sequence but the first shares with the one before it in `order`."""
    lengths = np.diff(ends, prepend=0)
    starts = ends - lengths
    before, after = order[:-1], order[1:]
    least = np.minimum(lengths[before], lengths[after])
    differs = flat[ranges(starts[before], least)] != flat[ranges(starts[after], least)]
    firsts = np.cumsum(least) - least
    # Where none differs, the next pair's first is found, which is too far.
    places = np.append(np.flatnonzero(differs), len(differs))
    found = places[np.searchsorted(places, firsts)] - firsts
    shared: list[int] = np.minimum(found, least).tolist()
    return shared
