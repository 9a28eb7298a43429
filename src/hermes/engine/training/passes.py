"""One pass over one pack, forwards and, once the loss has spoken, backwards.

Either the pass is written out (`layer_stack`), or the backbone's graph is recorded and autograd goes back
through it: any backbone can do that. Both give the same gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from hermes.engine.attention.packed import packed_attend, packed_attention
from hermes.engine.attention.packing import Pack
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.training import layer_plain
from hermes.engine.training.layer_weights import head_of
from hermes.engine.training.manual_backward import Stack
from hermes.engine.transfer import ship

WRITTEN_OUT: tuple[str, ...] = ("cuda",)
"""Devices on which a compact backbone's pass is written out. On a CPU recording it costs no more."""


class Pass(Protocol):
    @property
    def states(self) -> Tensor:
        """[T, hidden], without a graph."""
        ...

    @property
    def lora(self) -> LoraWeights:
        """Holds at least the output projection's part of the adapter, if it has one."""
        ...

    def backward(self, upstream: Tensor, gradient: Tensor) -> None:
        """Adds to the adapter's flat gradient, given the gradient of the states."""
        ...


def run_pass(
    backbone: Backbone, adapter: Adapter, batch: Pack, *, train: bool, checkpoint: bool = False
) -> Pass:
    """With `train`, its `backward` may be called, once; with `checkpoint`, layers are then computed again."""
    device = backbone.device
    tokens, positions = ship((batch.tokens, batch.positions), device)
    if isinstance(backbone, LlamaBackbone) and device.type in WRITTEN_OUT:
        attention = packed_attention(batch, backbone.spec, device, backbone.dtype)
        stack = Stack(backbone, adapter, attention, _points(device))
        states = stack.forward(tokens, positions, keep=train, checkpoint=checkpoint)
        return _ManualBackward(stack, states, head_of(adapter, backbone.dtype))
    with torch.set_grad_enabled(train):
        lora = adapter.weights(backbone.dtype)
        attend = packed_attend(batch, backbone.spec, device)
        hidden = backbone.hidden(tokens, positions, attend, lora, checkpoint=checkpoint)
    return _AutogradPass(hidden, hidden.detach(), lora, adapter)


def _points(device: torch.device) -> ModuleType:
    if device.type != "cuda":
        return layer_plain
    from hermes.engine.kernels import layer

    return layer


@dataclass(frozen=True, slots=True, eq=False)
class _ManualBackward:
    stack: Stack
    states: Tensor
    lora: LoraWeights

    def backward(self, upstream: Tensor, gradient: Tensor) -> None:
        self.stack.backward(upstream, gradient)


@dataclass(frozen=True, slots=True, eq=False)
class _AutogradPass:
    hidden: Tensor
    states: Tensor
    lora: LoraWeights
    adapter: Adapter

    def backward(self, upstream: Tensor, gradient: Tensor) -> None:
        if self.hidden.requires_grad:
            (flat,) = torch.autograd.grad(self.hidden, self.adapter.parameters, upstream)
            gradient.add_(flat)
