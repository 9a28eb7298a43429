"""torch's variable-length attention kernel, outside autograd and for it.

For attention on CUDA the keys of a pack are repeated. Each node is a sequence of queries; its keys are those
of its ancestors and its own. If no node is shared, keys and values are passed as they are. Otherwise only
they are repeated, and their gradients are summed in a fixed order, so that results are reproducible bit for
bit. The manual backward pass has an attention of its own (`training.varlen_attention`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.packing import Pack, ranges
from hermes.engine.transfer import to_device
from hermes.engine.types import Ints

_ORDER_FREE_KEYS = 128
"""Up to so many keys the backward kernel adds at most two parts of a query's gradient: any order gives the
same sum."""


def varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest: tuple[int, int], window: int | None
) -> tuple[Tensor, ...]:
    """Causal attention of packed sequences, aligned to the end of the keys; half precision only.

    q [Tq, heads, D], k and v [Tk, kv_heads, D]; `cu_*` [sequences + 1] int32 are the offsets of the
    sequences. Returns the output, and the tensors that `varlen_backward` needs (its `saved`).
    """
    causal, back = window is None, -1 if window is None else window - 1
    outputs: Any = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_q, cu_k, *longest, 0.0, causal, False, window_size_left=back, window_size_right=0
    )
    out, lse, random, unused, _ = outputs
    return out, lse, random, unused


def varlen_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    saved: tuple[Tensor, ...],
    cu_q: Tensor,
    cu_k: Tensor,
    longest: tuple[int, int],
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    causal, back = window is None, -1 if window is None else window - 1
    lse, random, unused = saved
    with _deterministic(longest[1]):
        gradients: Any = torch.ops.aten._flash_attention_backward(
            grad, q, k, v, out, lse, cu_q, cu_k, *longest, 0.0, causal, random, unused,
            window_size_left=back, window_size_right=0,
        )  # fmt: skip
    dq, dk, dv = gradients
    return dq, dk, dv


class VarlenFunction(torch.autograd.Function):
    """`varlen_forward` and `varlen_backward` for autograd."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *layout: Any) -> Tensor:
        out, *saved = varlen_forward(q, k, v, *layout)
        ctx.save_for_backward(q, k, v, out, *saved)
        ctx.layout = layout
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *saved = ctx.saved_tensors
        gradients = varlen_backward(grad, q, k, v, out, tuple(saved), *ctx.layout)
        return *gradients, *(None for _ in ctx.layout)


@contextmanager
def _deterministic(keys: int) -> Iterator[None]:
    """Makes the kernel add partial gradients in a fixed order, so that results are reproducible."""
    if keys <= _ORDER_FREE_KEYS:
        yield
        return
    memory: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")
    memory.fill_uninitialized_memory = False  # the kernel writes all of it
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        memory.fill_uninitialized_memory = before[1]


@dataclass(frozen=True, slots=True, eq=False)
class SharedKeyCopies:
    """How the keys of shared nodes are repeated: each node has a copy of all keys it attends to."""

    source: Tensor
    """[repeated rows]: the pack's row that each one is a copy of."""
    node: Tensor
    """[T] int32: the node of each row."""
    position: Tensor
    """[T] int32: the row's index among the keys of every node that attends to it."""
    subtree_end: Tensor
    """[nodes] int32: the node itself and the nodes up to here, exclusive, attend to it."""
    key_offsets: Tensor
    """[nodes + 1] int32: where the keys of each node begin."""


@dataclass(frozen=True, slots=True, eq=False)
class RowRepeat:
    """Which rows to repeat, and how to sum their gradients."""

    source: Tensor
    """[repeated rows]: the pack's row that each one is a copy of."""
    own_copy: Tensor
    """[T]: the copy of each row among the keys of its own node."""
    shared: Tensor
    """The rows that have more than one copy."""
    other_copies: Tensor
    """[shared rows, most copies]: their other copies, filled up with the number of repeated rows."""


@dataclass(frozen=True, slots=True, eq=False)
class _NodeTree:
    """The nodes of a pack as arrays."""

    starts: Ints
    query_lengths: Ints
    """Tokens of each node."""
    key_lengths: Ints
    """Keys that each node attends to."""
    subtree_ends: Ints
    """The node after the last descendant of each."""
    key_rows: Ints
    """The rows of the keys, node after node."""

    @property
    def shares(self) -> bool:
        return len(self.key_rows) > int(self.query_lengths.sum())


def node_tree(pack: Pack) -> _NodeTree:
    spans = np.array([(node.start, node.end, node.subtree_end) for node in pack.nodes], dtype=np.int64)
    starts, ends, subtree_ends = spans.T
    lengths = ends - starts
    paths: list[int] = []
    ancestors: list[int] = []
    for number, (start, _, _) in enumerate(spans.tolist()):
        while ancestors and subtree_ends[ancestors[-1]] <= start:
            ancestors.pop()
        ancestors.append(number)
        paths += ancestors
    return _NodeTree(
        starts=starts,
        query_lengths=lengths,
        key_lengths=pack.positions[ends - 1] + 1,
        subtree_ends=np.searchsorted(starts, subtree_ends),
        key_rows=ranges(starts[paths], lengths[paths]),
    )


def shared_key_copies(pack: Pack, tree: _NodeTree, device: torch.device) -> SharedKeyCopies | None:
    """None: no node is shared, so keys need not be repeated."""
    if not tree.shares:
        return None
    arrays = (
        tree.key_rows,
        np.repeat(np.arange(len(tree.starts), dtype=np.int32), tree.query_lengths),
        pack.positions.astype(np.int32),
        tree.subtree_ends.astype(np.int32),
        sequence_offsets(tree.key_lengths),
    )
    return SharedKeyCopies(*to_device(arrays, device))


def varlen_attend(pack: Pack, windows: Sequence[int | None], device: torch.device) -> Attend:
    tree = node_tree(pack)
    repeat = plan_repeat(pack, tree, device) if tree.shares else None
    cu_q, cu_k = to_device((sequence_offsets(tree.query_lengths), sequence_offsets(tree.key_lengths)), device)
    longest = int(tree.query_lengths.max()), int(tree.key_lengths.max())

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if repeat is not None:
            k, v = repeat_rows(k, repeat), repeat_rows(v, repeat)
        out: Tensor = VarlenFunction.apply(q, k, v, cu_q, cu_k, longest, windows[layer])  # type: ignore[no-untyped-call]
        return out

    return attend


def plan_repeat(pack: Pack, tree: _NodeTree, device: torch.device) -> RowRepeat:
    nodes = np.arange(len(tree.starts))
    key_offsets = sequence_offsets(tree.key_lengths).astype(np.int64)
    node = np.repeat(nodes, tree.query_lengths)
    descendants = (tree.subtree_ends - nodes - 1)[node]
    shared = np.flatnonzero(descendants)
    number = np.arange(descendants.max(initial=0))
    reader = np.minimum(node[shared, None] + 1 + number, len(nodes) - 1)
    other_copies = np.where(
        number < descendants[shared, None],
        key_offsets[reader] + pack.positions[shared, None],
        len(tree.key_rows),
    )
    own_copy = key_offsets[node] + pack.positions
    return RowRepeat(*to_device((tree.key_rows, own_copy, shared, other_copies), device))


def sequence_offsets(lengths: Ints) -> NDArray[np.int32]:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def repeat_rows(x: Tensor, repeat: RowRepeat) -> Tensor:
    out: Tensor = _RepeatFunction.apply(x, repeat)  # type: ignore[no-untyped-call]
    return out


class _RepeatFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, repeat: RowRepeat) -> Tensor:
        ctx.repeat = repeat
        return x.index_select(0, repeat.source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        repeat: RowRepeat = ctx.repeat
        out = grad.index_select(0, repeat.own_copy)
        padded = torch.cat((grad, grad.new_zeros(1, *grad.shape[1:])))
        extra = padded[repeat.other_copies]
        out[repeat.shared] += extra.sum(1, dtype=torch.float32).to(grad.dtype)
        return out, None
