"""Which tokens are computed together, and which only once. Pure planning over numpy; no torch.

Sequences are laid end to end without padding. Where several begin with the same tokens, these are computed
once: the pack is a forest in depth-first order, every node a run of tokens, so that what attends to a node
(everything below it) is one contiguous run right behind it. A token's hidden state depends only on the
tokens before it, so sharing changes no result; what a loss wants of a shared token is asked per datum,
through `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

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
class _Builder:
    sequences: Sequence[Ints]
    order: Sequence[int]
    shared: Sequence[int]
    """Common prefix of each sequence in `order` with the one before it."""
    tokens: list[Ints]
    positions: list[Ints]
    nodes: list[Node]
    rows: dict[int, list[Ints]]
    size: int = 0

    def add(self, first: int, last: int, start: int, depth: int) -> None:
        """Lay out order[first:last], whose first `start` tokens lie in the nodes above."""
        for low, high in self._runs(first, last, start, depth):
            run = self.order[low:high]
            end = min(
                (self.shared[index] for index in range(low + 1, high)), default=len(self.sequences[run[0]])
            )
            slot, here = len(self.nodes), self.size
            self._place(run, start, end)
            self.nodes.append(Node(here, self.size, self.size, depth))
            if len(run) > 1:
                self.add(low, high, end, depth + 1)
                self.nodes[slot] = replace(self.nodes[slot], below=self.size)

    def _runs(self, first: int, last: int, start: int, depth: int) -> Iterator[tuple[int, int]]:
        low = first
        for index in range(first + 1, last + 1):
            if index == last or depth == MAX_DEPTH or self.shared[index] - start < MIN_SHARED:
                yield low, index
                low = index

    def _place(self, run: Sequence[int], start: int, end: int) -> None:
        for index in run:
            self.rows[index].append(np.arange(self.size, self.size + end - start))
        self.tokens.append(self.sequences[run[0]][start:end])
        self.positions.append(np.arange(start, end))
        self.size += end - start


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
    builder = _Builder(sequences, kept, common, [], [], [], {index: [] for index in kept})
    builder.add(0, len(kept), 0, 0)
    rows = {index: np.concatenate(parts) for index, parts in builder.rows.items()}
    return Pack(
        tokens=np.concatenate(builder.tokens),
        positions=np.concatenate(builder.positions),
        nodes=tuple(builder.nodes),
        members=tuple(order),
        rows=tuple(rows[inside[index]][: len(sequences[index])] for index in order),
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
    # Big-endian bytes sort like the numbers they spell, and comparing them is one memcmp.
    keys = [np.asarray(one, dtype=">i4").tobytes() for one in sequences]
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    shared = [0] + [_common(sequences[before], sequences[after]) for before, after in pairwise(order)]
    return order, shared[: len(order)]


def _common(a: Ints, b: Ints) -> int:
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length
