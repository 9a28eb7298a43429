"""Loads a base model from a folder or a hub name, or wraps a transformers model, as a `Backbone`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone, unsupported_reason
from hermes.engine.model.transformers import TransformersBackbone
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Kind = Literal["auto", "compact", "transformers"]


def load_backbone(
    source: str, device: str | torch.device, dtype: torch.dtype, kind: Kind = "auto"
) -> Backbone:
    """The model of a folder or a hub name, as the fastest backbone that is exact for it."""
    from transformers import AutoModelForCausalLM

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise EngineUserError(
            f"The base model '{source}' could not be loaded: {str(error).splitlines()[0]}",
            "Use a folder with config.json and safetensors, or a hub name that can be reached.",
        ) from error
    return wrap_model(model, source, device, kind)


def wrap_model(
    model: PreTrainedModel, name: str, device: str | torch.device = "cpu", kind: Kind = "auto"
) -> Backbone:
    """A transformers model that is in memory already; its weights are moved, not copied."""
    reason = unsupported_reason(model.config)
    if kind == "compact" and reason:
        raise EngineUserError(f"'{name}' has no compact form: {reason}.", "Load it with kind='transformers'.")
    if kind == "transformers" or reason:
        return TransformersBackbone(model, name, torch.device(device))
    return LlamaBackbone.from_model(model, name, torch.device(device))
