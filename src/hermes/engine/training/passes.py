"""The forward and backward pass over one pack.

Either with a manual backward pass (`manual_backward`), which only Llama backbones have, or by autograd, which
works for every backbone. Both give the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.packed import DenseAttention, PackedAttention, pack_windows, packed_attend
from hermes.engine.attention.packing import Pack
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.adapter_table import AdapterRows
from hermes.engine.lora.weights import LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.training import layer_plain
from hermes.engine.training.manual_backward import LayerStack
from hermes.engine.transfer import to_device

MANUAL_BACKWARD_DEVICES: tuple[str, ...] = ("cuda",)
"""Devices on which a Llama backbone uses the manual backward pass. On a CPU autograd costs no more."""


class TrainingPass(Protocol):
    @property
    def states(self) -> Tensor:
        """Final hidden states [T, hidden], detached."""
        ...

    @property
    def lora(self) -> LoraWeights:
        """Contains at least the LM head's part of the adapter, if it has one."""
        ...

    def backward(self, upstream: Tensor, gradient: Tensor) -> None:
        """Adds to the adapter's flat gradient, given the gradient of the states."""
        ...


class RunPass(Protocol):
    def __call__(
        self,
        backbone: Backbone,
        adapter: Adapter,
        batch: Pack,
        *,
        train: bool,
        checkpoint: bool = False,
        pause: Callable[[], None] | None = None,
    ) -> TrainingPass:
        """See `run_pass`."""
        ...


def run_pass(
    backbone: Backbone,
    adapter: Adapter,
    batch: Pack,
    *,
    train: bool,
    checkpoint: bool = False,
    pause: Callable[[], None] | None = None,
) -> TrainingPass:
    """Runs the forward pass. With `train`, `backward` may be called once.

    With `checkpoint`, `backward` recomputes the layers instead of using saved activations. `pause` is called
    between layers, in both directions (`can_pause`).
    """
    device = backbone.device
    tokens, positions = to_device((batch.tokens, batch.positions), device)
    if isinstance(backbone, LlamaBackbone) and not records_pass(backbone):
        rows = _adapter_rows(backbone, adapter, batch)
        stack = LayerStack(backbone, adapter, _attention(batch, backbone), _layer_ops(device), rows)
        states = stack.forward(tokens, positions, keep=train, checkpoint=checkpoint)
        return _ManualBackward(stack, states, adapter.live_weights())
    with torch.set_grad_enabled(train):
        lora = adapter.weights(backbone.dtype)
        attend = packed_attend(batch, backbone.spec, device)
        if pause is not None:
            attend = pausing(attend, pause)
        hidden = backbone.hidden(tokens, positions, attend, lora, checkpoint=checkpoint)
    return _AutogradPass(hidden, hidden.detach(), lora, adapter)


def records_pass(backbone: Backbone) -> bool:
    """Whether autograd records the pass of this backbone, and the caller decides what attends to what."""
    # Autograd would keep the dequantised matrices of all layers for the backward pass.
    return (
        isinstance(backbone, LlamaBackbone)
        and backbone.device.type not in MANUAL_BACKWARD_DEVICES
        and not backbone.is_quantized
    )


def can_pause(backbone: Backbone) -> bool:
    """Whether the backbone may compute something else within a pass: that of transformers keeps state.

    A GPU needs no pauses: a micro-batch takes it a moment.
    """
    return isinstance(backbone, LlamaBackbone) and backbone.device.type not in MANUAL_BACKWARD_DEVICES


def pausing(attend: Attend, pause: Callable[[], None]) -> Attend:
    """Pauses before the attention of a layer: in the forward pass, when it is recomputed and going back."""

    def pausing(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pause()
        out = attend(layer, q, k, v)
        if out.requires_grad:
            out.register_hook(lambda _: pause())  # type: ignore[no-untyped-call]
        return out

    return pausing


def _attention(batch: Pack, backbone: LlamaBackbone) -> PackedAttention:
    """The fastest exact attention of the device for a manual backward pass."""
    spec, device = backbone.spec, backbone.device
    windows = pack_windows(batch, spec)
    if device.type != "cuda" or backbone.dtype not in (torch.bfloat16, torch.float16):
        return DenseAttention(batch, windows, device)
    from hermes.engine.training.varlen_attention import VarlenAttention

    return VarlenAttention(batch, windows, spec.heads // spec.kv_heads, device)


def _adapter_rows(backbone: LlamaBackbone, adapter: Adapter, batch: Pack) -> AdapterRows | None:
    if backbone.device.type != "cuda":
        return None
    return AdapterRows.for_spans(adapter.table(backbone.dtype), [(0, len(batch.tokens))])


def _layer_ops(device: torch.device) -> ModuleType:
    if device.type != "cuda":
        return layer_plain
    from hermes.engine.kernels import layer

    return layer


@dataclass(frozen=True, slots=True, eq=False)
class _ManualBackward:
    stack: LayerStack
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
