"""A prefix that all sequences of a call share, computed once for all of its micro-batches.

Its keys and values are leaves of each micro-batch's graph. Their gradients are summed, and the backward pass
of the prefix itself runs once, after the last micro-batch. Only for backbones and devices on which autograd
records the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.packed import packed_attend
from hermes.engine.attention.packing import Pack, pack_unshared
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.training.passes import TrainingPass, pausing
from hermes.engine.types import Ints

MIN_TOKENS = 64
"""A shorter prefix is computed with each micro-batch."""

Pause = Callable[[], None] | None


def common_prefix(sequences: Sequence[Ints]) -> int:
    """The number of tokens that all sequences begin with."""
    if not len(sequences):
        return 0
    shortest = min(map(len, sequences))
    first = sequences[0][:shortest]
    differs = np.zeros(shortest, np.bool_)
    for sequence in sequences[1:]:
        differs |= sequence[:shortest] != first
    return int(differs.argmax()) if differs.any() else shortest


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """`compute`, then `run` for each micro-batch, all of which begin with the prefix, then `backward`."""

    backbone: Backbone
    adapter: Adapter
    tokens: Ints
    hidden: Tensor = field(init=False)
    heads: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Keys and values by layer, recorded by autograd."""
    leaves: list[Tensor] = field(default_factory=list)
    """The same, detached: of one layer after the other, keys before values."""
    gradients: list[Tensor] = field(default_factory=list)
    upstream: Tensor = field(init=False)
    """The sum of the gradients of `hidden`."""

    def compute(self, pause: Pause) -> SharedPrefix:
        batch = pack_unshared([self.tokens])
        attend = packed_attend(batch, self.backbone.spec, self.backbone.device)

        def recording(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.heads.append((k, v))
            return attend(layer, q, k, v)

        with torch.enable_grad():
            lora = self.adapter.weights(self.backbone.dtype)
            self.hidden = self._hidden(batch, 0, recording, lora, pause)
        self.leaves = [part.detach().requires_grad_() for pair in self.heads for part in pair]
        self.gradients = [torch.zeros_like(leaf) for leaf in self.leaves]
        self.upstream = torch.zeros_like(self.hidden)
        return self

    def run(self, batch: Pack, pause: Pause) -> TrainingPass:
        """The forward pass of a micro-batch, whose first node begins with the prefix, without the prefix."""
        size = len(self.tokens)
        attend = packed_attend(batch, self.backbone.spec, self.backbone.device, size)

        def after_prefix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.leaves[2 * layer : 2 * layer + 2]
            queries = torch.cat((q.new_zeros(size, *q.shape[1:]), q))  # the prefix's own outputs are not used
            return attend(layer, queries, torch.cat((keys, k)), torch.cat((values, v)))[size:]

        with torch.enable_grad():
            lora = self.adapter.weights(self.backbone.dtype)
            hidden = self._hidden(batch, size, after_prefix, lora, pause)
        return _PassAfterPrefix(self, hidden, torch.cat((self.hidden.detach(), hidden.detach())), lora)

    def backward(self, gradient: Tensor) -> None:
        """Adds the prefix's part of the adapter's gradient."""
        outputs = [self.hidden, *(part for pair in self.heads for part in pair)]
        upstreams = [self.upstream, *self.gradients]
        recorded = [number for number, output in enumerate(outputs) if output.requires_grad]
        if recorded:
            (flat,) = torch.autograd.grad(
                [outputs[number] for number in recorded],
                self.adapter.parameters,
                [upstreams[number] for number in recorded],
            )
            gradient.add_(flat)

    def _hidden(self, batch: Pack, start: int, attend: Attend, lora: LoraWeights, pause: Pause) -> Tensor:
        tokens, positions = (torch.as_tensor(part[start:]) for part in (batch.tokens, batch.positions))
        return self.backbone.hidden(
            tokens, positions, attend if pause is None else pausing(attend, pause), lora
        )


@dataclass(frozen=True, slots=True, eq=False)
class _PassAfterPrefix:
    prefix: SharedPrefix
    hidden: Tensor
    states: Tensor
    lora: LoraWeights

    def backward(self, upstream: Tensor, gradient: Tensor) -> None:
        prefix = self.prefix
        size = len(prefix.tokens)
        prefix.upstream.add_(upstream[:size])
        if not self.hidden.requires_grad:
            return
        inputs = [prefix.adapter.parameters, *prefix.leaves]
        flat, *heads = torch.autograd.grad(self.hidden, inputs, upstream[size:])
        gradient.add_(flat)
        for total, part in zip(prefix.gradients, heads, strict=True):
            total.add_(part)
