"""Attention over a pack: every token sees its own node up to itself, and the nodes above it, whole.

`packed_attend` picks the fastest exact way on the device. On CUDA in half precision it is one call of torch's
variable-length kernel, for which only the keys and values of shared nodes are repeated (`attention_varlen`).
Elsewhere it is a few dense products: a node's own triangle, and one rectangle per shared node, joined by
their log-sum-exp. The backward pass of such a join is the backward pass of each piece under the joint
log-sum-exp, so nothing is computed twice and nothing of size [T, T] is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.blocks import piece_backward, piece_forward
from hermes.engine.attention.packed_varlen import SharedKeyCopies, VarlenAttention, varlen_attend
from hermes.engine.attention.packing import Node, Pack
from hermes.engine.spec import ModelSpec

_SLACK = 0.75
"""Nodes at least this long, against the longest, are computed as one padded batch."""


@dataclass(frozen=True, slots=True, eq=False)
class _Own:
    """Nodes of similar length, each attending to itself, as one batch [nodes, longest]."""

    rows: Tensor
    """[nodes * longest]; padding repeats row 0 of the pack."""
    shape: tuple[int, int]
    cells: Tensor
    """Which of `rows` are not padding."""
    targets: Tensor
    """The rows of these."""
    padding: Tensor | None
    """[nodes, longest], true at padding; None where there is none."""

    def take(self, x: Tensor) -> Tensor:
        """[nodes, longest, …] of x [T, …]"""
        return x.index_select(0, self.rows).view(*self.shape, *x.shape[1:])

    def put(self, into: Tensor, x: Tensor) -> None:
        flat = x.flatten(0, 1) if self.padding is None else x.flatten(0, 1).index_select(0, self.cells)
        into.index_copy_(0, self.targets, flat.to(into.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    own: tuple[_Own, ...]
    shared: tuple[Node, ...]
    """Nodes that something below attends to."""
    window: int | None
    """Narrower than the longest sequence, or None. Only for packs that share nothing."""


class PackedAttention(Protocol):
    """Attention of one pack with its backward pass written out, beside any graph."""

    copies: SharedKeyCopies | None
    """How keys and values must be repeated before they are given; None: not at all."""

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The result, and what `backward` wants to see again."""
        ...

    def backward(
        self,
        layer: int,
        grad: Tensor,
        heads: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        weights: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of `heads`: q, k and v."""
        ...


class DenseAttention:
    """`PackedAttention` by dense products."""

    copies: SharedKeyCopies | None = None

    def __init__(self, pack: Pack, windows: Sequence[int | None], device: torch.device) -> None:
        self._windows = windows
        self._plans = {window: _plan(pack.nodes, window, device) for window in set(windows)}

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        out, lse = _forward(q, k, v, self._plans[self._windows[layer]])
        return out, (lse,)

    def backward(
        self,
        layer: int,
        grad: Tensor,
        heads: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        weights: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        (lse,) = weights
        return _backward(grad, heads, out, lse, self._plans[self._windows[layer]])


def packed_attention(
    pack: Pack, spec: ModelSpec, device: torch.device, dtype: torch.dtype
) -> PackedAttention:
    """What `packed_attend` does, for a pass that is written out."""
    fast = device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)
    return (VarlenAttention if fast else DenseAttention)(pack, _windows(pack, spec), device)


def packed_attend(pack: Pack, spec: ModelSpec, device: torch.device) -> Attend:
    """The `Attend` of one pack, which shares nothing where a window is narrower than its sequences."""
    windows = _windows(pack, spec)
    dense: dict[int | None, _Plan] = {}
    varlen: list[Attend] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
            if not varlen:
                varlen.append(varlen_attend(pack, windows, q.device))
            return varlen[0](layer, q, k, v)
        window = windows[layer]
        if window not in dense:
            dense[window] = _plan(pack.nodes, window, device)
        out: Tensor = _Packed.apply(q, k, v, dense[window])  # type: ignore[no-untyped-call]
        return out

    return attend


def _windows(pack: Pack, spec: ModelSpec) -> list[int | None]:
    """Per layer, those that hide something."""
    longest = int(pack.positions.max()) + 1
    return [None if window is None or window >= longest else window for window in spec.windows]


def _plan(nodes: Sequence[Node], window: int | None, device: torch.device) -> _Plan:
    by_length = sorted(nodes, key=lambda node: node.start - node.end)
    own: list[list[Node]] = []
    for node in by_length:
        length = node.end - node.start
        if not own or length < _SLACK * (own[-1][0].end - own[-1][0].start):
            own.append([])
        own[-1].append(node)
    return _Plan(
        own=tuple(_own(batch, device) for batch in own),
        shared=tuple(node for node in nodes if node.below > node.end),
        window=window,
    )


def _own(nodes: Sequence[Node], device: torch.device) -> _Own:
    lengths = np.array([node.end - node.start for node in nodes])
    starts = np.array([node.start for node in nodes])
    column = np.arange(lengths.max())
    padding = column >= lengths[:, None]
    rows = np.where(padding, 0, starts[:, None] + column)
    cells = np.flatnonzero(~padding)
    flat = (
        torch.as_tensor(one, device=device) for one in (rows.ravel(), cells, rows.ravel()[cells], padding)
    )
    rows_t, cells_t, targets_t, padding_t = flat
    return _Own(rows_t, (len(nodes), len(column)), cells_t, targets_t, padding_t if padding.any() else None)


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: _Plan) -> Tensor:
        out, lse = _forward(q, k, v, plan)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan = plan
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        return *_backward(grad, (q, k, v), out, lse, ctx.plan), None


def _forward(q: Tensor, k: Tensor, v: Tensor, plan: _Plan) -> tuple[Tensor, Tensor]:
    """The result, and the log-sum-exp of the scores [T, heads]."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    for own in plan.own:
        piece, weight = piece_forward(own.take(q), own.take(k), own.take(v), True, plan.window)
        own.put(out, piece)
        own.put(lse, weight)
    for node in plan.shared:
        keys, below = slice(node.start, node.end), slice(node.end, node.below)
        piece, weight = piece_forward(q[None, below], k[None, keys], v[None, keys], False, None)
        _join(out[below], lse[below], piece[0], weight[0])
    return out, lse


def _backward(
    grad: Tensor, heads: tuple[Tensor, Tensor, Tensor], out: Tensor, lse: Tensor, plan: _Plan
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = heads
    dq, dk, dv = (torch.empty_like(one) for one in heads)
    for own in plan.own:
        weight, upstream = own.take(lse), own.take(grad)
        if own.padding is not None:
            # A padded row is another token's: weighing it at zero keeps its scores from overflowing.
            weight.masked_fill_(own.padding[..., None], torch.inf)
            upstream.masked_fill_(own.padding[..., None, None], 0.0)
        taken = (own.take(q), own.take(k), own.take(v), own.take(out), weight)
        for into, piece in zip(
            (dq, dk, dv), piece_backward(upstream, *taken, True, plan.window), strict=True
        ):
            own.put(into, piece)
    for node in plan.shared:
        keys, below = slice(node.start, node.end), slice(node.end, node.below)
        rows = (q[None, below], k[None, keys], v[None, keys], out[None, below], lse[None, below])
        pieces = piece_backward(grad[None, below], *rows, False, None)
        for into, part, piece in zip((dq, dk, dv), (below, keys, keys), pieces, strict=True):
            into[part] += piece[0].to(into.dtype)
    return dq, dk, dv


def _join(out: Tensor, lse: Tensor, piece: Tensor, weight: Tensor) -> None:
    """Softmax over two sets of keys from the softmax over each; in place."""
    both = torch.logaddexp(lse, weight)
    mixed = out * (lse - both).exp()[..., None] + piece * (weight - both).exp()[..., None]
    out.copy_(mixed)
    lse.copy_(both)
