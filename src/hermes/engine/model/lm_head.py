"""Logprobs of target tokens from hidden states, without storing logits of size [T, vocabulary].

Positions are computed in chunks. The gradient is formed in the same pass as the logprobs, from the same
exponentials, so that logits are computed once. That is possible because the loss at a position depends on the
logprobs of that position alone; a loss for which this does not hold passes a precomputed derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.lora.adapter_table import AdapterRows, AdapterTable
from hermes.engine.lora.weights import LoraGroup, LoraPart, LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.products import lora_linear, wide_linear
from hermes.engine.spec import HEAD

_CHUNK_LOGITS = {"cpu": 1 << 23, "cuda": 1 << 27}
"""Logits in memory at once."""

Derivative = Callable[[Tensor, slice], Tensor]
"""(logprobs of a chunk, its rows) to d loss / d logprobs, of the same shape."""

Pause = Callable[[], None]
"""Called before each chunk, for other work."""


@dataclass(frozen=True, slots=True, eq=False)
class LogprobGradients:
    logprobs: Tensor
    hidden: Tensor
    """d loss / d hidden"""
    a: Tensor | None
    """d loss / d A of the LM head's adapter, if there is one; fp32."""
    b: Tensor | None


@torch.no_grad()
def token_logprobs(
    hidden: Tensor,
    targets: Tensor,
    backbone: Backbone,
    lora: LoraWeights | None,
    temperature: float = 1.0,
    pause: Pause | None = None,
) -> Tensor:
    """fp32 logprobs of `targets` [T] or [T, K] given the hidden states [T, H]."""
    out = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
    target_columns = _columns(targets)
    lm_head = _LmHead.from_backbone(backbone, lora)
    for rows in _chunks(hidden, backbone, pause):
        logits, _ = lm_head.logits(hidden[rows])
        if temperature != 1.0:
            logits = logits.float() / temperature
        out[rows] = lm_head.logprobs(logits, target_columns[rows]).view(out[rows].shape)
    return out


@torch.no_grad()
def logprobs_backward(
    hidden: Tensor,
    targets: Tensor,
    backbone: Backbone,
    lora: LoraWeights | None,
    derivative: Derivative,
    pause: Pause | None = None,
) -> LogprobGradients:
    """The same logprobs as `token_logprobs`, and the gradients of the loss with this derivative."""
    out = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
    grad = torch.empty_like(hidden)
    target_columns = _columns(targets)
    lm_head = _LmHead.from_backbone(backbone, lora)
    for rows in _chunks(hidden, backbone, pause):
        states, columns = hidden[rows], target_columns[rows]
        logits, lora_down = lm_head.logits(states)
        chosen = logits.gather(1, columns).float()
        invariant = lm_head.logprobs(logits, columns) if lm_head.invariant else None
        weights, top, total = exponentials(logits, hidden.dtype)
        logprobs = chosen - top - total.log() if invariant is None else invariant
        out[rows] = logprobs.view(out[rows].shape)
        upstream = derivative(out[rows], rows).view(logprobs.shape)
        scale = upstream.sum(-1, keepdim=True) / total
        grad[rows] = lm_head.backward(states, lora_down, columns, weights, upstream, scale)
    return LogprobGradients(out, grad, lm_head.a_grad, lm_head.b_grad)


def log_sum_exp(logits: Tensor) -> Tensor:
    """[T, 1] in fp32."""
    if logits.is_cuda:
        from hermes.engine.kernels.lm_head import softmax_stats

        top, total = softmax_stats(logits)
        return top + total.log()
    return logits.float().logsumexp(-1, keepdim=True)


def exponentials(logits: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logits - top) in `dtype`; top and the sum of the exponentials, [T, 1] in fp32."""
    if logits.is_cuda:
        from hermes.engine.kernels.lm_head import softmax_stats

        weights = torch.empty_like(logits, dtype=dtype)
        return weights, *softmax_stats(logits, weights)
    return _exponentials(logits)


def _exponentials(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    top = logits.amax(-1, keepdim=True).float()
    weights = (logits.float() - top).exp_()
    return weights.to(logits.dtype), top, weights.sum(-1, keepdim=True)


@dataclass(slots=True)
class _LmHead:
    """The LM head with its adapter, whose gradients are summed over chunks."""

    weight: Tensor
    a: Tensor | None
    b: Tensor | None
    scale: float
    table: AdapterTable | None
    """The adapter as the sampler's kernels read it; None where there are none."""
    fused: Tensor | None
    """[vocab, hidden + rank]: the weight and b, so that one product gives both gradients. Only on a GPU,
    where passes over the logits cost the most."""
    invariant: bool
    """Whether the logprobs have the bits of the sampler's."""
    a_grad: Tensor | None = None
    b_grad: Tensor | None = None

    @classmethod
    def from_backbone(cls, backbone: Backbone, lora: LoraWeights | None) -> _LmHead:
        weight = backbone.head_weight
        invariant = isinstance(backbone, LlamaBackbone) and backbone.batch_invariant
        group = lora.groups.get(HEAD) if lora else None
        if lora is None or group is None:
            return cls(weight, None, None, 1.0, None, None, invariant)
        (part,) = group.parts
        assert part is not None
        a, b = (matrix.detach().to(weight.dtype) for matrix in (group.a, part.b))
        if not isinstance(backbone, LlamaBackbone) or not weight.is_cuda:
            return cls(weight, a, b, part.scale, None, None, invariant)
        table = AdapterTable((HEAD,), weight.device)
        table.write(0, LoraWeights({HEAD: LoraGroup(a, (LoraPart(b, part.scale),))}).aligned())
        return cls(weight, a, b, part.scale, table, torch.cat((weight, b), dim=1), invariant)

    def logits(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logits, and states · Aᵀ, scaled."""
        if self.a is None or self.b is None:
            return wide_linear(states, self.weight, invariant=self.invariant), None
        lora_down = functional.linear(states, self.a).mul_(self.scale)
        if self.table is not None:
            lora = AdapterRows.for_spans(self.table, [(0, len(states))])
            outputs = (self.weight.shape[0],)
            logits = lora_linear(
                states, self.weight, None, lora, HEAD, outputs, invariant=self.invariant, wide=True
            )
            return logits, lora_down
        logits = wide_linear(states, self.weight, invariant=self.invariant)
        return logits.addmm_(lora_down.to(logits.dtype), self.b.to(logits.dtype).t()), lora_down

    def logprobs(self, logits: Tensor, columns: Tensor) -> Tensor:
        """[T, K] in fp32."""
        if self.invariant:
            from hermes.engine.kernels.sample import column_logprobs

            return column_logprobs(logits, columns)
        return logits.gather(1, columns).float() - log_sum_exp(logits)

    def backward(
        self,
        states: Tensor,
        lora_down: Tensor | None,
        columns: Tensor,
        weights: Tensor,
        upstream: Tensor,
        scale: Tensor,
    ) -> Tensor:
        """The gradient of the states of one chunk; that of the adapter is added to `a_grad` and `b_grad`.

        The gradient of the logits is `upstream` at the target columns, minus `scale` times the exponentials
        `weights` everywhere.
        """
        at_targets, everywhere = upstream.to(states.dtype), scale.to(states.dtype)
        if self.a is None or self.b is None or lora_down is None:
            return _weighted_rows(at_targets, self.weight[columns]) - everywhere * (weights @ self.weight)
        if self.fused is not None:
            fused_grad = _weighted_rows(at_targets, self.fused[columns]) - everywhere * (weights @ self.fused)
            grad, down_grad = torch.split(fused_grad, [states.shape[1], lora_down.shape[1]], dim=1)
        else:
            grad = _weighted_rows(at_targets, self.weight[columns]) - everywhere * (weights @ self.weight)
            down_grad = _weighted_rows(at_targets, self.b[columns]) - everywhere * (weights @ self.b)
        if self.a_grad is None or self.b_grad is None:
            self.a_grad, self.b_grad = (
                torch.zeros_like(matrix, dtype=torch.float32) for matrix in (self.a, self.b)
            )
        self.a_grad += self.scale * (down_grad.t() @ states)
        self.b_grad -= weights.t() @ (everywhere * lora_down)
        target_grads = upstream[..., None] * lora_down.float()[:, None]
        add_rows(self.b_grad, columns.flatten(), target_grads.flatten(0, 1))
        return torch.addmm(grad, down_grad, self.a, alpha=self.scale)


def _weighted_rows(weights: Tensor, rows: Tensor) -> Tensor:
    """Per position, the weighted sum of its targets' rows [T, K, …]."""
    return weights * rows[:, 0] if weights.shape[1] == 1 else torch.einsum("nk,nkh->nh", weights, rows)


def add_rows(out: Tensor, index: Tensor, values: Tensor) -> None:
    """out[index] += values; repeated indices accumulate, in an order that is fixed for a device."""
    if out.is_cuda:
        out.index_put_((index,), values.to(out.dtype), accumulate=True)
    else:
        out.index_add_(0, index, values.to(out.dtype))


def _columns(targets: Tensor) -> Tensor:
    """The targets as [T, K]."""
    return targets[:, None] if targets.dim() == 1 else targets


def _chunks(hidden: Tensor, backbone: Backbone, pause: Pause | None) -> Iterator[slice]:
    step = max(1, _CHUNK_LOGITS.get(hidden.device.type, 1 << 23) // backbone.spec.vocab)
    for start in range(0, hidden.shape[0], step):
        if pause is not None:
            pause()
        yield slice(start, min(start + step, hidden.shape[0]))
