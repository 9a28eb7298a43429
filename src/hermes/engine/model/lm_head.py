"""From hidden states to the logprobs of chosen tokens, without ever holding [T, vocabulary].

Positions are worked off in chunks. The gradient is formed in the same pass as the logprobs, from the very
exponentials whose sum normalises them, so that logits are computed once. That is possible because each
position's share of a loss depends on its own logprobs alone; a loss for which that is not so passes the
finished derivative instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.lora.weights import LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.spec import HEAD

_CHUNK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 28}
"""Logits in memory at once."""

_SIDE_BY_SIDE: tuple[str, ...] = ("cuda",)
"""Devices where a copy of the projection with its adapter beside it is worth its memory: passes over the
logits are what costs most there."""

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
    projection = _Projection.of(backbone, lora)
    for rows in _chunks(hidden, backbone):
        logits, _ = projection.logits(hidden[rows])
        if temperature != 1.0:
            logits = logits.float() / temperature
        chosen = logits.gather(1, wanted[rows]).float()
        out[rows] = (chosen - log_total(logits)).view(out[rows].shape)
    return out


@torch.no_grad()
def logprobs_backward(
    hidden: Tensor, targets: Tensor, backbone: Backbone, lora: LoraWeights | None, derivative: Derivative
) -> HeadResult:
    """Logprobs as `token_logprobs` gives them, and the gradients of the loss whose derivative is given."""
    out = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
    grad = torch.empty_like(hidden)
    wanted = _columns(targets)
    projection = _Projection.of(backbone, lora)
    for rows in _chunks(hidden, backbone):
        states, columns = hidden[rows], wanted[rows]
        logits, low = projection.logits(states)
        chosen = logits.gather(1, columns).float()
        weights, top, total = exponentials(logits)
        found = chosen - top - total.log()
        out[rows] = found.view(out[rows].shape)
        pull = derivative(out[rows], rows).view(found.shape)
        share = pull.sum(-1, keepdim=True) / total
        grad[rows] = projection.backward(states, low, columns, weights, pull, share)
    return HeadResult(out, grad, projection.a_grad, projection.b_grad)


def log_total(logits: Tensor) -> Tensor:
    """log of the sum of exp(logits), [T, 1] in fp32."""
    if logits.is_cuda:
        from hermes.engine.kernels.lm_head import normalise

        top, total = normalise(logits, write=False)
        return top + total.log()
    return logits.float().logsumexp(-1, keepdim=True)


def exponentials(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logits - top) in the logits' dtype, perhaps in their place; top and the exponentials' sum [T, 1] in
    fp32."""
    if logits.is_cuda:
        from hermes.engine.kernels.lm_head import normalise

        return logits, *normalise(logits, write=True)
    return _exponentials(logits)


def _exponentials(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    top = logits.amax(-1, keepdim=True).float()
    weights = (logits.float() - top).exp_()
    return weights.to(logits.dtype), top, weights.sum(-1, keepdim=True)


@dataclass(slots=True)
class _Projection:
    """The output projection with its adapter's part, whose gradients are summed over chunks."""

    weight: Tensor
    a: Tensor | None
    b: Tensor | None
    scale: float
    both: Tensor | None
    """[vocab, hidden + rank]: weight and b side by side, or None."""
    a_grad: Tensor | None = None
    b_grad: Tensor | None = None

    @classmethod
    def of(cls, backbone: Backbone, lora: LoraWeights | None) -> _Projection:
        weight = backbone.head_weight
        group = lora.groups.get(HEAD) if lora else None
        if group is None:
            return cls(weight, None, None, 1.0, None)
        (part,) = group.parts
        assert part is not None
        a, b = (one.detach().to(weight.dtype) for one in (group.a, part.b))
        wide = weight.device.type in _SIDE_BY_SIDE
        return cls(weight, a, b, part.scale, torch.cat((weight, b), dim=1) if wide else None)

    def logits(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """And states · Aᵀ, scaled."""
        if self.a is None or self.b is None:
            return functional.linear(states, self.weight), None
        low = functional.linear(states, self.a).mul_(self.scale)
        if self.both is not None:
            return functional.linear(torch.cat((states, low), dim=1), self.both), low
        return functional.linear(states, self.weight).addmm_(low, self.b.t()), low

    def backward(
        self,
        states: Tensor,
        low: Tensor | None,
        columns: Tensor,
        weights: Tensor,
        pull: Tensor,
        share: Tensor,
    ) -> Tensor:
        """The gradient of the states; one chunk's part of those of the adapter is taken."""
        near, far = pull.to(states.dtype), share.to(states.dtype)
        if self.a is None or self.b is None or low is None:
            return _toward(near, self.weight[columns]) - far * (weights @ self.weight)
        if self.both is not None:
            whole = _toward(near, self.both[columns]) - far * (weights @ self.both)
            grad, down = torch.split(whole, [states.shape[1], low.shape[1]], dim=1)
        else:
            grad = _toward(near, self.weight[columns]) - far * (weights @ self.weight)
            down = _toward(near, self.b[columns]) - far * (weights @ self.b)
        if self.a_grad is None or self.b_grad is None:
            self.a_grad, self.b_grad = (
                torch.zeros_like(one, dtype=torch.float32) for one in (self.a, self.b)
            )
        self.a_grad += self.scale * (down.t() @ states)
        self.b_grad -= weights.t() @ (far * low)
        spread = pull[..., None] * low.float()[:, None]
        add_rows(self.b_grad, columns.flatten(), spread.flatten(0, 1))
        return torch.addmm(grad, down, self.a, alpha=self.scale)


def _toward(pull: Tensor, rows: Tensor) -> Tensor:
    """Of each position, its targets' rows [T, K, …], weighed."""
    return pull * rows[:, 0] if pull.shape[1] == 1 else torch.einsum("nk,nkh->nh", pull, rows)


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
