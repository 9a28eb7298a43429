"""The shape of a base model, read once from its configuration.

A `ModelSpec` is plain data: training and sampling are planned with it, and adapter files are checked against
it. It contains no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from types import SimpleNamespace

    from transformers import PretrainedConfig

    ModelConfig: TypeAlias = PretrainedConfig | SimpleNamespace
    """Transformers' own, or the fields of a config.json that states everything (engine.model.config)."""

Site = tuple[int, str]
"""A linear that an adapter can change: the layer and the projection's name. The LM head is HEAD."""

HEAD: Site = (-1, "lm_head")

Part = Literal["attn", "mlp", "unembed"]

Quantization = Literal["nf4", "int8"]
QUANTIZATIONS: tuple[Quantization, ...] = ("nf4", "int8")

DEFAULT_MAX_LENGTH = 2048
"""For configurations without a maximum length."""


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear layer of the base model."""

    path: str
    """Its module path in the transformers model, which is also its name in PEFT files."""
    inputs: int
    outputs: int
    part: Part


@dataclass(frozen=True, slots=True, eq=False)
class ModelSpec:
    name: str
    """Folder or hub name it was loaded from."""
    family: str
    """The configuration's model_type."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_length: int
    rope: str
    eps: float
    tied: bool
    """The LM head is the embedding matrix."""
    qkv_bias: bool
    qk_norm: bool
    eos_ids: tuple[int, ...]
    windows: tuple[int | None, ...]
    """Per layer, the sliding window: how many positions a token attends to, itself included; None: all."""
    linears: Mapping[Site, Linear]
    groups: Mapping[Site, tuple[Site, ...]]
    """Linears with the same input, which are applied as one, by the name of the group, in model order."""
    quantization: Quantization | None = None
    """How the layers' matrices are stored; None: in the model's dtype."""


def read_spec(
    config: ModelConfig,
    name: str,
    linears: Mapping[Site, Linear],
    groups: Mapping[Site, tuple[Site, ...]],
    generation_eos: Any,
) -> ModelSpec:
    """The spec of a text model's configuration, with the linear layers of its implementation.

    `generation_eos`: `eos_token_id` of the generation configuration, where many chat models have their
    end-of-turn token.
    """
    eos_ids = (*_ids(config.eos_token_id), *_ids(generation_eos))
    heads = int(config.num_attention_heads)
    return ModelSpec(
        name=name,
        family=str(config.model_type),
        layers=int(config.num_hidden_layers),
        hidden=int(config.hidden_size),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        intermediate=int(config.intermediate_size),
        vocab=int(config.vocab_size),
        max_length=int(getattr(config, "max_position_embeddings", None) or DEFAULT_MAX_LENGTH),
        rope=str((getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")),
        eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        tied=bool(config.tie_word_embeddings),
        qkv_bias=bool(getattr(config, "attention_bias", config.model_type == "qwen2")),
        qk_norm=config.model_type in ("qwen3", "gemma3_text"),
        eos_ids=tuple(dict.fromkeys(eos_ids)),
        windows=_windows(config),
        linears=linears,
        groups=groups,
    )


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(token) for token in value) if isinstance(value, list | tuple) else (int(value),)


def _windows(config: ModelConfig) -> tuple[int | None, ...]:
    count = int(config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    if not window or not getattr(config, "use_sliding_window", True):
        return (None,) * count
    kinds = getattr(config, "layer_types", None) or ("sliding_attention",) * count
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
