"""The one interface between the base model and everything that trains or samples it.

A backbone turns packed tokens into final hidden states and knows nothing about batches: the caller's `Attend`
decides what attends to what (packed sequences, shared prefixes, a paged cache), and the caller's `LoraView`
which adapter acts on which token. Two implementations give the same numbers: `compact` for the Llama-like
families, and `generic` for any other causal model of transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from hermes.engine.lora import LoraView, LoraWeights
from hermes.engine.spec import ModelSpec
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [T, heads, D], k [T, kv_heads, D], v [T, kv_heads, D]), rotary applied, to [T, heads, D].
Scores are scaled by D ** -0.5; a layer's window is in the spec."""

Kind = Literal["auto", "compact", "transformers"]


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


def load_backbone(
    source: str, device: str | torch.device, dtype: torch.dtype, kind: Kind = "auto"
) -> Backbone:
    """The model in a folder or under a hub name, as the fastest backbone that is exact for it."""
    from transformers import AutoModelForCausalLM

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise EngineUserError(
            f"The base model '{source}' could not be loaded: {str(error).splitlines()[0]}",
            "Give a folder with config.json and safetensors, or a hub name that can be reached.",
        ) from error
    return wrap_model(model, source, device, kind)


def wrap_model(
    model: PreTrainedModel, name: str, device: str | torch.device = "cpu", kind: Kind = "auto"
) -> Backbone:
    """A transformers model that is already in memory; its weights are taken over."""
    from hermes.engine.compact import CompactBackbone, why_not_compact
    from hermes.engine.generic import GenericBackbone

    reason = why_not_compact(model.config)
    if kind == "compact" and reason:
        raise EngineUserError(f"'{name}' has no compact form: {reason}.", "Load it with kind='transformers'.")
    if kind == "transformers" or reason:
        return GenericBackbone(model, name, torch.device(device))
    return CompactBackbone.from_model(model, name, torch.device(device))
