"""The base model with the adapter in training merged in, as the sampler merges it.

The forward pass of training uses the rounded matrices that the policy will be sampled with, so their rounding
does not separate the two. The gradients are those of the adapter's matrices, as if the sum were not rounded.
One copy of the model is kept and merged again when the adapter or its weights change; where there is no
memory for a copy, a layer is merged whenever it is used. Nothing is merged into a quantised model: there the
sampler adds the adapter's products, and so does the training pass.
"""

from __future__ import annotations

import weakref

import torch

from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import LoraWeights
from hermes.engine.memory import free_bytes
from hermes.engine.model.llama import LlamaBackbone, LlamaLayer, merge_layer
from hermes.engine.model.merged import clone_matrices, copy_bytes, merge_into

_FREE_FACTOR = 4
"""A copy is kept only if this many times its size is free: activations need memory too."""


class MergedAdapter:
    """Used by the compute thread alone."""

    def __init__(self, base: LlamaBackbone) -> None:
        self.base = base
        self._copy: LlamaBackbone | None = None
        self._weights: LoraWeights | None = None
        """The adapter's weights where no copy is kept."""
        self._merged: tuple[weakref.ref[Adapter], int] | None = None
        """The adapter that was merged last, and the version of its weights."""

    @property
    def merges(self) -> bool:
        """Whether `layer` has the adapter merged in."""
        return not self.base.is_quantized

    @torch.no_grad()
    def load(self, adapter: Adapter) -> None:
        """Merges the adapter, unless its weights are merged already."""
        if not self.merges:
            return
        if self._merged is not None and self._merged[0]() is adapter and self._merged[1] == adapter.version:
            return
        self._merged = None  # after a failure half-way the copy holds nobody's weights
        weights = adapter.live_weights()
        if self._copy is None and free_bytes(self.base.device) > _FREE_FACTOR * copy_bytes(self.base):
            self._copy = clone_matrices(self.base)
        self._weights = None if self._copy is not None else weights
        if self._copy is not None:
            merge_into(self._copy, self.base, weights)
        self._merged = weakref.ref(adapter), adapter.version

    def layer(self, index: int) -> LlamaLayer:
        if not self.merges:
            return self.base.layers[index]
        if self._weights is not None:
            return merge_layer(self.base, index, self._weights)
        assert self._copy is not None, "load was not called"
        return self._copy.layers[index]
