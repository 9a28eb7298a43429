"""The interface of the base model to training and sampling.

A backbone maps packed tokens to final hidden states and has no notion of batches: the caller's `Attend`
decides what attends to what (packed sequences, shared prefixes, a pool of keys and values), and the caller's
`LoraView` which adapter applies to which token. Two implementations give the same numbers: `llama` for the
Llama-like families, and `transformers` for any other causal language model of transformers.
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

        With `checkpoint`, the backward pass recomputes each layer instead of saving its activations.
        """
        ...

    def merged(self, weights: LoraWeights) -> Backbone:
        """The model with the adapter added to its weights."""
        ...
