"""A Llama-like model from its files, without transformers' model: that takes seconds to import and a copy.

The names and shapes are those of transformers' checkpoints. A folder that has others is not read here but by
transformers, which knows older names too (`can_read`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hermes.engine.model.llama import LlamaBackbone, LlamaLayer, linears_of
from hermes.engine.model.safetensors_reader import ALL, SafetensorsReader
from hermes.engine.spec import HEAD, ModelSpec, read_spec

if TYPE_CHECKING:
    from hermes.engine.spec import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerCut:
    """Which part of a layer to read."""

    queries: slice
    """Rows of the query projection, columns of the output projection."""
    keys: slice
    """Rows of the key and value projections."""
    inner: slice
    """The part of the feed-forward layer's inner width."""
    has_output_bias: bool
    """Whether the bias after the output projection belongs to this part."""


_WHOLE = LayerCut(ALL, ALL, ALL, has_output_bias=True)


def can_read(reader: SafetensorsReader, spec: ModelSpec) -> bool:
    """Whether the files have every matrix of the model, under its name and in its shape."""
    paths = {
        linear.path.removeprefix("model."): linear for site, linear in spec.linears.items() if site != HEAD
    }
    names = [f"{path}.weight" for path in paths]
    ends = ["embed_tokens.weight", "norm.weight", *([] if spec.tied else ["lm_head.weight"])]
    vectors = ["input_layernorm.weight", "post_attention_layernorm.weight"]
    if spec.qkv_bias:
        vectors += [f"self_attn.{name}.bias" for name in ("q_proj", "k_proj", "v_proj")]
    if spec.qk_norm:
        vectors += ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]
    in_layers = [f"layers.{index}.{name}" for index in range(spec.layers) for name in vectors]
    if not reader.has([*names, *ends, *in_layers]):
        return False
    return reader.shape("embed_tokens.weight") == (spec.vocab, spec.hidden) and all(
        reader.shape(name) == (linear.outputs, linear.inputs)
        for name, linear in zip(names, paths.values(), strict=True)
    )


def read_llama(
    reader: SafetensorsReader,
    config: ModelConfig,
    spec: ModelSpec,
    collect: Callable[[Iterator[LlamaLayer]], Sequence[LlamaLayer]] = tuple,
) -> LlamaBackbone:
    """The whole model. `collect` may store the layers in another form, one after the other."""
    embed = reader.matrix("embed_tokens.weight")
    inv_freq, rope_scale = rotary_frequencies(config)
    return LlamaBackbone(
        spec=spec,
        embed=embed,
        layers=collect(read_layer(reader, spec, index) for index in range(spec.layers)),
        norm=reader.vector("norm.weight"),
        head_weight=embed if spec.tied else reader.matrix("lm_head.weight"),
        inv_freq=inv_freq.to(embed.device),
        rope_scale=rope_scale,
    )


def read_layer(reader: SafetensorsReader, spec: ModelSpec, index: int, cut: LayerCut = _WHOLE) -> LlamaLayer:
    layer = f"layers.{index}"
    attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    rows = {"q_proj": cut.queries, "k_proj": cut.keys, "v_proj": cut.keys}
    has_output_bias = spec.qkv_bias and cut.has_output_bias and reader.has([f"{attn}.o_proj.bias"])
    return LlamaLayer(
        input_norm=reader.vector(f"{layer}.input_layernorm.weight"),
        qkv=reader.stacked({f"{attn}.{name}.weight": part for name, part in rows.items()}),
        qkv_bias=reader.stacked({f"{attn}.{name}.bias": part for name, part in rows.items()})
        if spec.qkv_bias
        else None,
        q_norm=reader.vector(f"{attn}.q_norm.weight") if spec.qk_norm else None,
        k_norm=reader.vector(f"{attn}.k_norm.weight") if spec.qk_norm else None,
        o=reader.matrix(f"{attn}.o_proj.weight", columns=cut.queries),
        o_bias=reader.vector(f"{attn}.o_proj.bias") if has_output_bias else None,
        post_norm=reader.vector(f"{layer}.post_attention_layernorm.weight"),
        gate_up=reader.stacked({f"{mlp}.gate_proj.weight": cut.inner, f"{mlp}.up_proj.weight": cut.inner}),
        down=reader.matrix(f"{mlp}.down_proj.weight", columns=cut.inner),
    )


def spec_of_folder(folder: Path, name: str, config: ModelConfig) -> ModelSpec:
    """Many chat models have their end-of-turn token only in generation_config.json."""
    try:
        generation = json.loads((folder / "generation_config.json").read_text())
    except FileNotFoundError:
        generation = {}
    return read_spec(config, name, *linears_of(config), generation.get("eos_token_id"))


def rotary_frequencies(config: Any) -> tuple[Tensor, float]:
    """[head_dim / 2] in fp32, and the scale of cosines and sines, as transformers computes them."""
    kind = config.rope_parameters.get("rope_type", "default")
    if kind != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return inv_freq.float(), float(scale)
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return 1.0 / (config.rope_parameters["rope_theta"] ** exponents), 1.0
