"""The one interface between the base model and everything that trains or samples it.

A backbone turns packed tokens into final hidden states and knows nothing about batches: the caller's `Attend`
decides what attends to what (packed sequences, shared prefixes, a paged cache), and the caller's `LoraView`
which adapter acts on which token. Two implementations give the same numbers: `compact` for the Llama-like
families, and `generic` for any other causal model of transformers.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.lora.weights import LoraView, LoraWeights
from hermes.engine.spec import ModelSpec


class Backbone(Protocol):
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def head_weight(self) -> Tensor:
        """[vocab, hidden]"""
        ...

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        lora: LoraView | None,
        *,
        checkpoint: bool = False,
    ) -> Tensor:
        """[T, hidden] of the packed tokens [T], final norm applied.

        With `checkpoint`, the backward pass computes each layer again instead of keeping its activations.
        """
        ...

    def merged(self, weights: LoraWeights) -> Backbone: ...
