"""Packed attention on CUDA: one call of torch's variable-length kernel a layer.

Each node is a sequence of queries whose keys are the nodes above it and its own; the kernel aligns causality
to the end of the keys. Where nothing is shared, keys and values go in as they are; where something is, only
they are repeated, and their gradients are summed in a fixed order, so that results repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.packing import Pack, ranges
from hermes.engine.attention.varlen import Varlen, varlen_backward, varlen_forward
from hermes.engine.transfer import ship
from hermes.engine.types import Ints


@dataclass(frozen=True, slots=True, eq=False)
class SharedKeyCopies:
    """How the keys of shared nodes are repeated: each node has, in a run, those it sees."""

    source: Tensor
    """[repeated rows]: the pack's row each one is a copy of."""
    node: Tensor
    """[T] int32: the node of each row …"""
    position: Tensor
    """[T] int32: … which in the runs of all nodes that see it is in this place."""
    last: Tensor
    """[nodes] int32: those that see a node are itself and all up to here."""
    begin: Tensor
    """[nodes + 1] int32: where their runs begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """Which rows to repeat, and how to sum their gradients."""

    source: Tensor
    """[repeated rows]: the pack's row each one is a copy of."""
    own: Tensor
    """[T]: the copy of each row that belongs to its own node."""
    shared: Tensor
    """The rows that have more than one copy."""
    others: Tensor
    """[shared rows, most copies]: their other copies; the number of repeated rows where there are fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class _Tree:
    """The nodes of a pack as arrays."""

    starts: Ints
    own: Ints
    """How many tokens each has …"""
    seen: Ints
    """… and how many keys it sees."""
    last: Ints
    source: Ints
    """The rows of these keys, node after node."""

    @property
    def shares(self) -> bool:
        return len(self.source) > int(self.own.sum())


def tree_of(pack: Pack) -> _Tree:
    spans = np.array([(node.start, node.end, node.below) for node in pack.nodes], dtype=np.int64)
    starts, ends, belows = spans.T
    own, seen = ends - starts, pack.positions[ends - 1] + 1
    paths: list[int] = []
    above: list[int] = []
    for number, (start, _, _) in enumerate(spans.tolist()):
        while above and belows[above[-1]] <= start:
            above.pop()
        above.append(number)
        paths += above
    return _Tree(starts, own, seen, np.searchsorted(starts, belows), ranges(starts[paths], own[paths]))


class VarlenAttention:
    """`PackedAttention` in half precision on CUDA."""

    def __init__(self, pack: Pack, windows: Sequence[int | None], device: torch.device) -> None:
        tree = tree_of(pack)
        self._windows = windows
        self._longest = int(tree.own.max()), int(tree.seen.max())
        small = (
            _begins(tree.own),
            _begins(tree.seen),
            np.repeat(np.arange(len(tree.own), dtype=np.int32), tree.own),
            pack.positions.astype(np.int32),
            tree.last.astype(np.int32),
        )
        source, self._queries, self._keys, node, position, last = ship((tree.source, *small), device)
        self.copies = SharedKeyCopies(source, node, position, last, self._keys) if tree.shares else None

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        ends = self._queries, self._keys
        out, *weights = varlen_forward(q, k, v, *ends, self._longest, self._windows[layer])
        return out, tuple(weights)

    def backward(
        self,
        layer: int,
        grad: Tensor,
        heads: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        weights: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        ends = self._queries, self._keys
        return varlen_backward(grad, *heads, out, weights, *ends, self._longest, self._windows[layer])


def varlen_attend(pack: Pack, windows: Sequence[int | None], device: torch.device) -> Attend:
    tree = tree_of(pack)
    repeat = plan_repeat(pack, tree, device) if tree.shares else None
    cu_q, cu_k = ship((_begins(tree.own), _begins(tree.seen)), device)
    longest = int(tree.own.max()), int(tree.seen.max())

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if repeat is not None:
            k, v = repeat_rows(k, repeat), repeat_rows(v, repeat)
        out: Tensor = Varlen.apply(q, k, v, cu_q, cu_k, longest, windows[layer])  # type: ignore[no-untyped-call]
        return out

    return attend


def plan_repeat(pack: Pack, tree: _Tree, device: torch.device) -> Repeat:
    begins = _begins(tree.seen).astype(np.int64)
    node = np.repeat(np.arange(len(tree.own)), tree.own)
    readers = (tree.last - np.arange(len(tree.own)) - 1)[node]
    shared = np.flatnonzero(readers)
    number = np.arange(readers.max(initial=0))
    which = np.minimum(node[shared, None] + 1 + number, len(tree.own) - 1)
    others = np.where(
        number < readers[shared, None], begins[which] + pack.positions[shared, None], len(tree.source)
    )
    return Repeat(*ship((tree.source, begins[node] + pack.positions, shared, others), device))


def _begins(lengths: Ints) -> NDArray[np.int32]:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def repeat_rows(x: Tensor, repeat: Repeat) -> Tensor:
    out: Tensor = _Repeat.apply(x, repeat)  # type: ignore[no-untyped-call]
    return out


class _Repeat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, repeat: Repeat) -> Tensor:
        ctx.repeat = repeat
        return x.index_select(0, repeat.source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        repeat: Repeat = ctx.repeat
        out = grad.index_select(0, repeat.own)
        padded = torch.cat((grad, grad.new_zeros(1, *grad.shape[1:])))
        extra = padded[repeat.others]
        out[repeat.shared] += extra.sum(1, dtype=torch.float32).to(grad.dtype)
        return out, None
