"""Sequence packing with shared prefixes. Pure planning over numpy; no torch.

Sequences are concatenated without padding. Tokens of a prefix that several sequences share are computed once:
the pack is a forest in depth-first order, every node a run of tokens, so that the tokens which attend to a
node (all of its descendants) directly follow it. A token's hidden state depends only on the tokens before it,
so sharing changes no result. A loss finds the tokens of each sequence in the pack through `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from hermes.engine.types import Ints

MIN_SHARED = 8
"""A shorter common prefix is computed repeatedly: a separate attention block would cost more than it
saves."""

MAX_DEPTH = 8
"""Ancestors of a node: each is one more attention block to combine."""


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens [start, end) of a pack; its descendants are the tokens [end, subtree_end)."""

    start: int
    end: int
    subtree_end: int
    depth: int
    """The number of its ancestors."""


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """One micro-batch."""

    tokens: Ints
    positions: Ints
    nodes: tuple[Node, ...]
    members: tuple[int, ...]
    """Indices of the sequences in it."""
    rows: tuple[Ints, ...]
    """Per member, the index in `tokens` of each of its positions."""


@dataclass(slots=True)
class _Forest:
    """The nodes of a pack, as plain numbers; arrays are made for all of them at once."""

    lengths: Sequence[int]
    shared: Sequence[int]
    """Length of each sequence's common prefix with the one before it, in the pack's order."""
    spans: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Per node: the sequence its tokens are taken from, the first and last position, and its depth."""
    subtree_ends: list[int] = field(default_factory=list)
    paths: list[tuple[int, ...]] = field(default_factory=list)
    """Per sequence, its nodes."""
    size: int = 0

    def add(self, first: int, last: int, start: int, ancestors: tuple[int, ...]) -> None:
        """Adds nodes for the sequences [first, last), whose first `start` tokens are in the ancestors."""
        for low, high in self._runs(first, last, start, len(ancestors)):
            end = min(self.shared[low + 1 : high]) if high - low > 1 else self.lengths[low]
            path = (*ancestors, len(self.spans))
            self.spans.append((low, start, end, len(ancestors)))
            self.size += end - start
            self.subtree_ends.append(self.size)
            if high - low > 1:
                self.add(low, high, end, path)
                self.subtree_ends[path[-1]] = self.size
            else:
                self.paths.append(path)

    def _runs(self, first: int, last: int, start: int, depth: int) -> Iterator[tuple[int, int]]:
        low = first
        for index in range(first + 1, last + 1):
            if index == last or depth == MAX_DEPTH or self.shared[index] - start < MIN_SHARED:
                yield low, index
                low = index


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """start, start + 1, … start + length - 1 for each pair, concatenated."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def pack(sequences: Sequence[Ints], budget_tokens: int, *, share: bool = True) -> list[Pack]:
    """Micro-batches of at most `budget_tokens` computed tokens; a longer sequence gets its own."""
    order, shared = (
        sort_sequences(sequences) if share else (list(range(len(sequences))), [0] * len(sequences))
    )
    packs: list[Pack] = []
    low, size = 0, 0
    for index, member in enumerate(order):
        length = len(sequences[member])
        more = length - (shared[index] if index > low else 0)
        if index > low and size + more > budget_tokens:
            packs += _fit(sequences, order[low:index], shared[low:index], budget_tokens)
            low, size, more = index, 0, length
        size += more
    return packs + (_fit(sequences, order[low:], shared[low:], budget_tokens) if order else [])


def _fit(
    sequences: Sequence[Ints], order: Sequence[int], shared: Sequence[int], budget_tokens: int
) -> list[Pack]:
    """One pack, or several if it exceeds the budget because short common prefixes are not shared."""
    built = _build(sequences, order, shared)
    if len(built.tokens) <= budget_tokens or len(order) == 1:
        return [built]
    half = len(order) // 2
    parts = ((order[:half], shared[:half]), (order[half:], shared[half:]))
    return [packed for part in parts for packed in _fit(sequences, *part, budget_tokens)]


def pack_unshared(sequences: Sequence[Ints]) -> Pack:
    """All sequences in one pack, in order, without shared prefixes."""
    return _build(sequences, range(len(sequences)), [0] * len(sequences))


def _build(sequences: Sequence[Ints], order: Sequence[int], shared: Sequence[int]) -> Pack:
    """The pack of sequences in an order where those with a common prefix are neighbours."""
    maximal, common, contained_in = _without_prefixes(sequences, order, shared)
    chosen = [sequences[index] for index in maximal]
    lengths = [len(sequence) for sequence in chosen]
    forest = _Forest(lengths, common)
    forest.add(0, len(maximal), 0, ())
    source, first, last, depths = np.array(forest.spans, dtype=np.int64).T
    sizes = last - first
    ends = np.cumsum(sizes)
    starts = ends - sizes
    begins = np.cumsum(lengths) - lengths
    path = np.fromiter(chain.from_iterable(forest.paths), np.int64)
    rows = ranges(starts[path], sizes[path])
    begin = dict(zip(maximal, begins.tolist(), strict=True))
    spans = (starts.tolist(), ends.tolist(), forest.subtree_ends, depths.tolist())
    return Pack(
        tokens=np.concatenate(chosen)[ranges(begins[source] + first, sizes)],
        positions=ranges(first, sizes),
        nodes=tuple(map(Node, *spans)),
        members=tuple(order),
        rows=tuple(
            rows[(start := begin[contained_in[index]]) : start + len(sequences[index])] for index in order
        ),
    )


def _without_prefixes(
    sequences: Sequence[Ints], order: Sequence[int], shared: Sequence[int]
) -> tuple[list[int], list[int], dict[int, int]]:
    """Drops sequences that are a prefix of the next one.

    Returns the sequences that are left, the length of each one's common prefix with the one left before it,
    and for every sequence the one that contains it.
    """
    maximal: list[int] = []
    common: list[int] = []
    contained_in: dict[int, int] = {}
    prefixes: list[int] = []
    shortest = 0
    for rank, index in enumerate(order):
        shortest = min(shortest, shared[rank]) if prefixes else shared[rank]
        prefixes.append(index)
        last = rank + 1 == len(order)
        if last or shared[rank + 1] < len(sequences[index]):
            maximal.append(index)
            common.append(shortest)
            contained_in.update(dict.fromkeys(prefixes, index))
            prefixes = []
    return maximal, common, contained_in


def sort_sequences(sequences: Sequence[Ints]) -> tuple[list[int], list[int]]:
    """Indices in lexicographic order, and the length of each one's common prefix with its predecessor."""
    if not sequences:
        return [], []
    flat = np.concatenate(sequences)
    ends = np.cumsum([len(sequence) for sequence in sequences])
    # Big-endian bytes sort like the numbers they encode, and comparing them is one memcmp.
    encoded = flat.astype(">i4").tobytes()
    bounds = [0, *(4 * ends).tolist()]
    keys = [encoded[start:end] for start, end in pairwise(bounds)]
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    return order, [0, *_common_prefixes(flat, ends, np.array(order))]


def _common_prefixes(flat: Ints, ends: Ints, order: Ints) -> list[int]:
    """Length of the common prefix of each sequence but the first with the one before it in `order`."""
    lengths = np.diff(ends, prepend=0)
    starts = ends - lengths
    before, after = order[:-1], order[1:]
    shorter = np.minimum(lengths[before], lengths[after])
    differs = flat[ranges(starts[before], shorter)] != flat[ranges(starts[after], shorter)]
    pair_starts = np.cumsum(shorter) - shorter
    # Where no token differs, this is the first difference of a later pair, so the length is capped below.
    differences = np.append(np.flatnonzero(differs), len(differs))
    first_difference = differences[np.searchsorted(differences, pair_starts)] - pair_starts
    shared: list[int] = np.minimum(first_difference, shorter).tolist()
    return shared
