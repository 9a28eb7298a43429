"""Attention over a pack: every token attends to its node up to itself, and to all of its node's ancestors.

`packed_attend` picks the fastest exact implementation for the device. On CUDA in half precision it is one
launch of a variable-length kernel, for which only the keys and values of shared nodes are repeated
(`varlen`). Elsewhere it is a few dense blocks: a causal one per node, and a rectangular one per shared
node, combined by their log-sum-exp. The backward pass of the combination is that of each block under the
combined log-sum-exp, so nothing is computed twice and nothing of size [T, T] is stored.

A block of attention has queries [n, S, heads, D] over keys and values [n, L, kv_heads, D]. `causal` requires
S = L and lets query i attend to keys up to i; `window` limits how far back. The forward pass also returns the
log-sum-exp of the scores, by which the outputs of several blocks are combined. The backward pass takes the
combined output and log-sum-exp.

On a CPU, torch's flash attention is used where it is the fastest: in the forward pass, and in the fp32
backward pass. Otherwise query heads that share a key head are stacked along the query dimension, so that keys
are never repeated, and long blocks are computed in strips of queries, so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.packing import Node, Pack
from hermes.engine.attention.varlen import SharedKeyCopies, varlen_attend
from hermes.engine.spec import ModelSpec

_MIN_LENGTH_RATIO = 0.75
"""Nodes at least this long, relative to the longest, are computed as one padded batch."""


@dataclass(frozen=True, slots=True, eq=False)
class _NodeBatch:
    """Nodes of similar length, each attending to itself, as one padded batch [nodes, longest]."""

    rows: Tensor
    """[nodes * longest]: rows of the pack; padding repeats row 0."""
    shape: tuple[int, int]
    valid: Tensor
    """Indices into `rows` that are not padding."""
    valid_rows: Tensor
    """`rows` without the padding."""
    padding: Tensor | None
    """[nodes, longest], true at padding; None if there is none."""

    def gather(self, x: Tensor) -> Tensor:
        """x [T, …] as [nodes, longest, …]."""
        return x.index_select(0, self.rows).view(*self.shape, *x.shape[1:])

    def scatter(self, out: Tensor, x: Tensor) -> None:
        """Writes x [nodes, longest, …] to out [T, …]."""
        flat = x.flatten(0, 1) if self.padding is None else x.flatten(0, 1).index_select(0, self.valid)
        out.index_copy_(0, self.valid_rows, flat.to(out.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    batches: tuple[_NodeBatch, ...]
    shared: tuple[Node, ...]
    """Nodes that have descendants, which attend to them."""
    window: int | None
    """Shorter than the longest sequence, or None. Only for packs without shared nodes."""


class PackedAttention(Protocol):
    """Attention of one pack with a manual backward pass, outside autograd."""

    copies: SharedKeyCopies | None
    """How keys and values must be repeated before they are passed; None: not at all."""

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output, and the tensors that `backward` needs."""
        ...

    def backward(
        self,
        layer: int,
        grad: Tensor,
        heads: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        saved: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of `heads`: q, k and v."""
        ...


class DenseAttention:
    """`PackedAttention` by dense blocks."""

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
        saved: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        (lse,) = saved
        return _backward(grad, heads, out, lse, self._plans[self._windows[layer]])


def packed_attend(pack: Pack, spec: ModelSpec, device: torch.device, prefix_tokens: int = 0) -> Attend:
    """The `Attend` of one pack. A pack whose sequences are longer than a window must have no shared nodes.

    Only keys and values of the first `prefix_tokens` tokens, with which all sequences begin, are used: the
    outputs at them have no meaning. Only where attention is dense.
    """
    windows = pack_windows(pack, spec)
    nodes = _after(pack.nodes, prefix_tokens) if prefix_tokens else pack.nodes
    dense: dict[int | None, _Plan] = {}
    varlen: list[Attend] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
            if not varlen:
                varlen.append(varlen_attend(pack, windows, q.device))
            return varlen[0](layer, q, k, v)
        window = windows[layer]
        if window not in dense:
            dense[window] = _plan(nodes, window, device, prefix_tokens)
        out: Tensor = _DenseFunction.apply(q, k, v, dense[window])  # type: ignore[no-untyped-call]
        return out

    return attend


def pack_windows(pack: Pack, spec: ModelSpec) -> list[int | None]:
    """Each layer's window; None where it is longer than all sequences."""
    longest = int(pack.positions.max()) + 1
    return [None if window is None or window >= longest else window for window in spec.windows]


def _after(nodes: Sequence[Node], prefix_tokens: int) -> Sequence[Node]:
    """The nodes without the first `prefix_tokens` tokens, which the first node begins with."""
    first = nodes[0]
    rest = (
        [Node(prefix_tokens, first.end, first.subtree_end, first.depth)] if first.end > prefix_tokens else []
    )
    return [*rest, *nodes[1:]]


def _plan(nodes: Sequence[Node], window: int | None, device: torch.device, prefix_tokens: int = 0) -> _Plan:
    size = max(node.subtree_end for node in nodes)
    prefix = (Node(0, prefix_tokens, size, 0),) if prefix_tokens else ()
    by_length = sorted(nodes, key=lambda node: node.start - node.end)
    batches: list[list[Node]] = []
    for node in by_length:
        length = node.end - node.start
        if not batches or length < _MIN_LENGTH_RATIO * (batches[-1][0].end - batches[-1][0].start):
            batches.append([])
        batches[-1].append(node)
    return _Plan(
        batches=tuple(_node_batch(batch, device) for batch in batches),
        shared=(*prefix, *(node for node in nodes if node.subtree_end > node.end)),
        window=window,
    )


def _node_batch(nodes: Sequence[Node], device: torch.device) -> _NodeBatch:
    lengths = np.array([node.end - node.start for node in nodes])
    starts = np.array([node.start for node in nodes])
    column = np.arange(lengths.max())
    padding = column >= lengths[:, None]
    rows = np.where(padding, 0, starts[:, None] + column)
    valid = np.flatnonzero(~padding)
    return _NodeBatch(
        rows=torch.as_tensor(rows.ravel(), device=device),
        shape=(len(nodes), len(column)),
        valid=torch.as_tensor(valid, device=device),
        valid_rows=torch.as_tensor(rows.ravel()[valid], device=device),
        padding=torch.as_tensor(padding, device=device) if padding.any() else None,
    )


class _DenseFunction(torch.autograd.Function):
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
    """The output, and the log-sum-exp of the scores [T, heads]."""
    out = torch.zeros_like(q)
    lse = torch.zeros(q.shape[:2], dtype=torch.float32, device=q.device)
    for batch in plan.batches:
        block_out, block_lse = block_forward(
            batch.gather(q), batch.gather(k), batch.gather(v), True, plan.window
        )
        batch.scatter(out, block_out)
        batch.scatter(lse, block_lse)
    for node in plan.shared:
        keys, queries = slice(node.start, node.end), slice(node.end, node.subtree_end)
        block_out, block_lse = block_forward(q[None, queries], k[None, keys], v[None, keys], False, None)
        _combine(out[queries], lse[queries], block_out[0], block_lse[0])
    return out, lse


def _backward(
    grad: Tensor, heads: tuple[Tensor, Tensor, Tensor], out: Tensor, lse: Tensor, plan: _Plan
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = heads
    dq, dk, dv = (torch.zeros_like(head) for head in heads)
    for batch in plan.batches:
        batch_lse, upstream = batch.gather(lse), batch.gather(grad)
        if batch.padding is not None:
            # A padding row is another token's. With weight zero its scores cannot overflow.
            batch_lse.masked_fill_(batch.padding[..., None], torch.inf)
            upstream.masked_fill_(batch.padding[..., None, None], 0.0)
        inputs = (batch.gather(q), batch.gather(k), batch.gather(v), batch.gather(out), batch_lse)
        gradients = block_backward(upstream, *inputs, True, plan.window)
        for total, gradient in zip((dq, dk, dv), gradients, strict=True):
            batch.scatter(total, gradient)
    for node in plan.shared:
        keys, queries = slice(node.start, node.end), slice(node.end, node.subtree_end)
        inputs = (q[None, queries], k[None, keys], v[None, keys], out[None, queries], lse[None, queries])
        gradients = block_backward(grad[None, queries], *inputs, False, None)
        for total, rows, gradient in zip((dq, dk, dv), (queries, keys, keys), gradients, strict=True):
            total[rows] += gradient[0].to(total.dtype)
    return dq, dk, dv


def _combine(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """Attention over two sets of keys from the attention over each; in place."""
    total = torch.logaddexp(lse, block_lse)
    combined = out * (lse - total).exp()[..., None] + block_out * (block_lse - total).exp()[..., None]
    out.copy_(combined)
    lse.copy_(total)


_STRIP_SCORES = 4_000_000
"""Scores in memory at once."""


def block_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None) -> tuple[Tensor, Tensor]:
    """Output [n, S, heads, D] and log-sum-exp [n, S, heads]."""
    if q.device.type == "cpu" and window is None:
        views = (tensor.transpose(1, 2) for tensor in (q, k, v))
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*views, 0.0, causal)
        return out.transpose(1, 2), lse.view(*q.shape[:1], q.shape[2], q.shape[1]).transpose(1, 2)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    for rows, keys in _strips(q, k, causal):
        scores = _fold(_scaled(q[:, rows]), k) @ _by_head(k[:, keys]).float().transpose(1, 2)
        if causal:
            mask = torch.ones(rows.stop - rows.start, keys.stop, dtype=torch.bool, device=q.device)
            visible = _zero_hidden(mask, rows.start, window)
            scores = _per_head(scores, q[:, rows]).masked_fill_(~visible, -torch.inf).view_as(scores)
        strip_lse = scores.logsumexp(-1, keepdim=True)
        probs = (scores - strip_lse).exp().to(v.dtype)
        out[:, rows] = _unfold(probs @ _by_head(v[:, keys]), q[:, rows])
        lse[:, rows] = _unfold(strip_lse, q[:, rows])[..., 0]
    return out, lse


def block_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, given the combined output [n, S, heads, D] and log-sum-exp [n, S, heads]."""
    if q.device.type == "cpu" and window is None:
        return _flash_backward(grad, q, k, v, out, lse, causal)
    dtype, drift = q.dtype, (grad.float() * out.float()).sum(-1)
    dq = torch.empty_like(q)
    dk, dv = torch.zeros_like(_by_head(k)), torch.zeros_like(_by_head(v))
    for rows, keys in _strips(q, k, causal):
        scaled, upstream = _fold(_scaled(q[:, rows]), k), _fold(grad[:, rows], k)
        strip_k, strip_v = _by_head(k[:, keys]), _by_head(v[:, keys])
        strip_lse, strip_drift = _fold(lse[:, rows, :, None], k), _fold(drift[:, rows, :, None], k).to(dtype)
        probs = torch.baddbmm(-strip_lse, scaled, strip_k.float().transpose(1, 2)).exp_()
        if causal:
            _zero_hidden(_per_head(probs, q[:, rows]), rows.start, window)
        probs = probs.to(dtype)
        dv[:, keys] += probs.transpose(1, 2) @ upstream
        score_grad = torch.baddbmm(-strip_drift, upstream, strip_v.transpose(1, 2)).mul_(probs)
        dq[:, rows] = _unfold(score_grad @ strip_k, q[:, rows]) * q.shape[-1] ** -0.5
        dk[:, keys] += score_grad.transpose(1, 2) @ scaled.to(dtype)
    return dq, _by_position(dk, k), _by_position(dv, v)


def _flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's kernel does not support shared key heads: they are repeated, and their gradients summed.

    In single precision, which costs no more than bfloat16 and rounds once.
    """
    shared = q.shape[2] // k.shape[2]
    repeated = (tensor.repeat_interleave(shared, 2) for tensor in (k, v))
    views = (tensor.float().transpose(1, 2) for tensor in (grad, q, *repeated, out))
    gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *views, lse.transpose(1, 2).contiguous(), 0.0, causal
    )
    dq, dk, dv = (gradient.transpose(1, 2) for gradient in gradients)
    return dq.to(q.dtype), *(gradient.unflatten(2, (-1, shared)).sum(3).to(k.dtype) for gradient in (dk, dv))


def _strips(q: Tensor, k: Tensor, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Strips of queries, each with the keys that its queries can attend to."""
    queries, keys = q.shape[1], k.shape[1]
    step = max(16, _STRIP_SCORES // (q.shape[0] * q.shape[2] * keys))
    for start in range(0, queries, step):
        stop = min(start + step, queries)
        yield slice(start, stop), slice(0, stop if causal else keys)


def _zero_hidden(x: Tensor, offset: int, window: int | None) -> Tensor:
    """Zeroes, in place, the entries of keys that a query does not attend to. Queries begin at `offset`."""
    x.tril_(offset)
    if window is not None:
        x.triu_(offset - window + 1)
    return x


def _scaled(q: Tensor) -> Tensor:
    """In fp32, because the log-sum-exp is, and probabilities are differences from it."""
    scaled: Tensor = q.float() * q.shape[-1] ** -0.5
    return scaled


def _by_head(x: Tensor) -> Tensor:
    """[n, L, kv_heads, D] to [n · kv_heads, L, D]."""
    return x.transpose(1, 2).flatten(0, 1)


def _by_position(x: Tensor, like: Tensor) -> Tensor:
    """The reverse of `_by_head`."""
    n, length, heads, width = like.shape
    return x.view(n, heads, length, width).transpose(1, 2)


def _fold(x: Tensor, k: Tensor) -> Tensor:
    """[n, S, heads, …] to [n · kv_heads, heads / kv_heads · S, …]."""
    n, length, heads, width = x.shape
    shared = x.reshape(n, length, k.shape[2], heads // k.shape[2], width)
    return shared.permute(0, 2, 3, 1, 4).reshape(n * k.shape[2], -1, width)


def _per_head(x: Tensor, like: Tensor) -> Tensor:
    """Folded scores viewed as [n · heads, S, L]."""
    return x.view(like.shape[0] * like.shape[2], like.shape[1], x.shape[-1])


def _unfold(x: Tensor, like: Tensor) -> Tensor:
    """The reverse of `_fold`, for a tensor with as many queries and heads as `like`."""
    n, length, heads, _ = like.shape
    return x.view(n, heads, length, x.shape[-1]).transpose(1, 2)
