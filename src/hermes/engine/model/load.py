"""Loads a base model from a folder or a hub name, or wraps a transformers model, as a `Backbone`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from hermes.engine.model.backbone import Backbone
from hermes.engine.model.config import hide_progress_bars, read_config
from hermes.engine.model.llama import FAMILIES, LlamaBackbone, unsupported_reason
from hermes.engine.model.llama_files import can_read, read_llama, spec_of_folder
from hermes.engine.model.quantized import QuantizedLayers
from hermes.engine.model.safetensors_reader import SafetensorsReader, has_safetensors
from hermes.engine.model.transformers import TransformersBackbone
from hermes.engine.spec import Quantization
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hermes.engine.spec import ModelConfig

Kind = Literal["auto", "compact", "transformers"]


def load_backbone(
    source: str,
    device: str | torch.device,
    dtype: torch.dtype,
    kind: Kind = "auto",
    quantization: Quantization | None = None,
) -> Backbone:
    """The model of a folder or a hub name, as the fastest backbone that is exact for it."""
    try:
        config = read_config(source)
        if quantization is not None:  # refused before the weights are read
            _check_quantizable(config, source, kind)
        backbone = _read_files(source, config, torch.device(device), dtype, kind, quantization)
        if backbone is not None:
            return backbone
        from transformers import AutoModelForCausalLM

        hide_progress_bars()
        loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True)
    except (OSError, ValueError, KeyError) as error:
        raise EngineUserError(
            f"The base model '{source}' could not be loaded: {str(error).splitlines()[0]}",
            "Use a folder with config.json and safetensors, or a hub name that can be reached.",
        ) from error
    model, info = loaded
    if info["missing_keys"]:  # transformers would begin with random numbers there
        raise EngineUserError(
            f"The files of the base model '{source}' have no {min(info['missing_keys'])}.",
            "Use a folder whose weights belong to its config.json.",
        )
    return wrap_model(model, source, device, kind, quantization)


def _read_files(
    source: str,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    kind: Kind,
    quantization: Quantization | None,
) -> LlamaBackbone | None:
    """The compact form straight from a folder's files; None if only transformers can load them."""
    folder = Path(source)
    if kind == "transformers" or unsupported_reason(config) or not has_safetensors(folder):
        return None
    if getattr(config, "quantization_config", None):
        return None
    spec = spec_of_folder(folder, source, config)
    reader = SafetensorsReader(folder, source, dtype, device)
    if not can_read(reader, spec):
        return None
    if quantization is None:
        return read_llama(reader, config, spec)
    spec = replace(spec, quantization=quantization)
    return read_llama(reader, config, spec, partial(QuantizedLayers, kind=quantization))


def wrap_model(
    model: PreTrainedModel,
    name: str,
    device: str | torch.device = "cpu",
    kind: Kind = "auto",
    quantization: Quantization | None = None,
) -> Backbone:
    """A transformers model that is in memory already; its weights are moved, not copied."""
    reason = unsupported_reason(model.config)
    if kind == "compact" and reason:
        raise EngineUserError(f"'{name}' has no compact form: {reason}.", "Load it with kind='transformers'.")
    if quantization is not None:
        _check_quantizable(model.config, name, kind)
    if kind == "transformers" or reason:
        return TransformersBackbone(model, name, torch.device(device))
    if quantization is None:
        return LlamaBackbone.from_model(model, name, torch.device(device))
    collect = partial(QuantizedLayers, kind=quantization)
    backbone = LlamaBackbone.from_model(model, name, torch.device(device), collect)
    return replace(backbone, spec=replace(backbone.spec, quantization=quantization))


def _check_quantizable(config: ModelConfig, name: str, kind: Kind) -> None:
    """EngineUserError: the model has no form whose matrices can be quantised."""
    reason = "it runs through transformers" if kind == "transformers" else unsupported_reason(config)
    if not reason and getattr(config, "quantization_config", None):
        reason = "its files are quantised already"
    if reason:
        raise EngineUserError(
            f"--quantize does not support '{name}': {reason}.",
            f"Start the engine without --quantize, or use a model of {', '.join(FAMILIES)}.",
        )
