"""From hidden states to the logprobs of chosen tokens, without ever holding [T, vocabulary].

Positions are worked off in chunks. The gradient is formed in the same pass as the logprobs, from the very
exponentials whose sum normalises them, so that logits are computed once. That is possible because each
position's share of a loss depends on its own logprobs alone; a loss for which that is not so passes the
finished derivative instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.backbone import Backbone
from hermes.engine.lora import LoraWeights
from hermes.engine.spec import HEAD

_CHUNK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 28}
"""Logits in memory at once."""

Derivative = Callable[[Tensor, slice], Tensor]
"""(logprobs of a chunk, its rows) to d loss / d logprobs, of the same shape."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadResult:
    logprobs: Tensor
    hidden: Tensor
    """d loss / d hidden"""
    a: Tensor | None
    """d loss / d A of the output projection's adapter, if there is one; fp32."""
    b: Tensor | None


@torch.no_grad()
def token_logprobs(
    hidden: Tensor, targets: Tensor, backbone: Backbone, lora: LoraWeights | None, temperature: float = 1.0
) -> Tensor:
    """fp32 logprobs of `targets` [T] or [T, K] after the positions with the given hidden states [T, H]."""
    out = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
    wanted = _columns(targets)
    for rows in _chunks(hidden, backbone):
        logits = _logits(hidden[rows], backbone, lora).float()
        if temperature != 1.0:
            logits = logits / temperature
        chosen = logits.gather(1, wanted[rows])
        out[rows] = (chosen - logits.logsumexp(-1, keepdim=True)).view(out[rows].shape)
    return out


@torch.no_grad()
def logprobs_backward(
    hidden: Tensor, targets: Tensor, backbone: Backbone, lora: LoraWeights | None, derivative: Derivative
) -> HeadResult:
    """Logprobs as `token_logprobs` gives them, and the gradients of the loss whose derivative is given."""
    out = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
    grad = torch.empty_like(hidden)
    wanted = _columns(targets)
    group = lora.groups.get(HEAD) if lora else None
    head_grad = _HeadGradient.start(lora) if lora and group else None
    for rows in _chunks(hidden, backbone):
        states, columns = hidden[rows], wanted[rows]
        logits = _logits(states, backbone, lora)
        chosen = logits.gather(1, columns).float()
        weights, top, total = (_compiled() if logits.is_cuda else exponentials)(logits)
        found = chosen - top - total.log()
        out[rows] = found.view(out[rows].shape)
        pull = derivative(out[rows], rows).view(found.shape)
        share = pull.sum(-1, keepdim=True) / total
        toward = torch.einsum("nk,nkh->nh", pull.to(hidden.dtype), backbone.head_weight[columns])
        grad[rows] = toward - share.to(hidden.dtype) * (weights @ backbone.head_weight)
        if head_grad is not None:
            grad[rows] += head_grad.add(states, columns, weights, pull, share)
    return HeadResult(out, grad, head_grad.a if head_grad else None, head_grad.b if head_grad else None)


def exponentials(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logits - top) in the logits' dtype; top and the exponentials' sum [T, 1] in fp32."""
    top = logits.amax(-1, keepdim=True).float()
    weights = (logits.float() - top).exp()
    return weights.to(logits.dtype), top, weights.sum(-1, keepdim=True)


@cache
def _compiled() -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """The same in two passes over the logits."""
    return torch.compile(exponentials)


@dataclass(slots=True)
class _HeadGradient:
    """Gradients of the output projection's adapter, summed over chunks."""

    low_a: Tensor
    low_b: Tensor
    scale: float
    a: Tensor
    b: Tensor

    @classmethod
    def start(cls, lora: LoraWeights) -> _HeadGradient:
        group = lora.groups[HEAD]
        (part,) = group.parts
        assert part is not None
        zeros = (torch.zeros_like(one, dtype=torch.float32) for one in (group.a, part.b))
        return cls(group.a.detach(), part.b.detach(), part.scale, *zeros)

    def add(self, states: Tensor, columns: Tensor, weights: Tensor, pull: Tensor, share: Tensor) -> Tensor:
        """Takes one chunk's part; returns what it adds to the gradient of the hidden states."""
        dtype = states.dtype
        low = functional.linear(states, self.low_a)
        toward = torch.einsum("nk,nkr->nr", pull.to(dtype), self.low_b[columns])
        down = self.scale * (toward - share.to(dtype) * (weights @ self.low_b))
        self.a += down.t() @ states
        self.b -= self.scale * (weights.t() @ (share.to(dtype) * low))
        spread = self.scale * pull[..., None] * low.float()[:, None]
        add_rows(self.b, columns.flatten(), spread.flatten(0, 1))
        return down @ self.low_a


def add_rows(into: Tensor, index: Tensor, values: Tensor) -> None:
    """into[index] += values, rows named twice counted twice, in an order that repeats on the same device."""
    if into.is_cuda:
        into.index_put_((index,), values.to(into.dtype), accumulate=True)
    else:
        into.index_add_(0, index, values.to(into.dtype))


def _columns(targets: Tensor) -> Tensor:
    return targets[:, None] if targets.dim() == 1 else targets


def _chunks(hidden: Tensor, backbone: Backbone) -> Iterator[slice]:
    step = max(1, _CHUNK_LOGITS.get(hidden.device.type, 1 << 23) // backbone.spec.vocab)
    for start in range(0, hidden.shape[0], step):
        yield slice(start, min(start + step, hidden.shape[0]))


def _logits(states: Tensor, backbone: Backbone, lora: LoraWeights | None) -> Tensor:
    logits = functional.linear(states, backbone.head_weight)
    return logits if lora is None else lora.apply(HEAD, states, (logits,))[0]
