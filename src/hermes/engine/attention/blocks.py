"""One block of attention: queries [n, S, heads, D] over keys and values [n, L, kv_heads, D].

`causal` requires S = L and lets query i attend to keys up to i; `window` limits how far back. The forward
pass also returns the log-sum-exp of the scores, by which the outputs of several blocks are combined. The
backward pass takes the combined output and log-sum-exp.

On a CPU, torch's flash attention is used where it is the fastest: in the forward pass, and in the fp32
backward pass. Otherwise query heads that share a key head are stacked along the query dimension, so that keys
are never repeated, and long blocks are computed in strips of queries, so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

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
    if q.device.type == "cpu" and q.dtype == torch.float32 and window is None:
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
    """torch's kernel does not support shared key heads: they are repeated, and their gradients summed."""
    shared = q.shape[2] // k.shape[2]
    repeated = (tensor.repeat_interleave(shared, 2) for tensor in (k, v))
    views = (tensor.transpose(1, 2) for tensor in (grad, q, *repeated, out))
    gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        *views, lse.transpose(1, 2).contiguous(), 0.0, causal
    )
    dq, dk, dv = (gradient.transpose(1, 2) for gradient in gradients)
    return dq, *(gradient.unflatten(2, (-1, shared)).sum(3) for gradient in (dk, dv))


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
