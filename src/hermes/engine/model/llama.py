"""A fused forward pass for the Llama-like families: Llama, SmolLM 1 and 2, Mistral, Qwen2, Qwen3.

Query, key and value are one matrix product, gate and up another, and there is no batch dimension, so packed
tokens cost nothing extra. Its logits equal those of transformers (to 1e-4 in fp32, by the tests). It never
synchronises with the device, so a pass can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

from hermes.engine.attention.base import Attend
from hermes.engine.lora.weights import LoraDelta, LoraView, LoraWeights, merge_delta
from hermes.engine.spec import HEAD, Linear, ModelSpec, Site, read_spec

if TYPE_CHECKING:
    from hermes.engine.spec import ModelConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

GROUPS = ("qkv", "o", "gate_up", "down")
_LENGTH_DEPENDENT = ("dynamic", "longrope")


def unsupported_reason(config: ModelConfig) -> str:
    """Why `LlamaBackbone` is not exact for this configuration; empty if it is."""
    if config.model_type not in FAMILIES:
        return f"its family is {config.model_type}, not one of {', '.join(FAMILIES)}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    if getattr(config, "mlp_bias", False):
        return "its feed-forward layers have biases"
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope in _LENGTH_DEPENDENT:
        return f"its {rope} rotary frequencies depend on the sequence's length"
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class LlamaLayer:
    """One layer's weights; matrices that share an input are fused."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LlamaBackbone:
    spec: ModelSpec
    embed: Tensor
    layers: Sequence[LlamaLayer]
    """A quantised model's sequence dequantises a layer when it is read: read each once a pass."""
    norm: Tensor
    head_weight: Tensor
    inv_freq: Tensor
    """[head_dim / 2], fp32, from transformers' rotary module, with its scaling applied."""
    rope_scale: float
    batch_invariant: bool = False
    """Whether sampling and training use kernels whose result for a row does not depend on the other rows, so
    that both give the same bits. Only on a GPU."""

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    @property
    def is_quantized(self) -> bool:
        return self.spec.quantization is not None

    @classmethod
    def from_model(
        cls,
        model: Any,
        name: str,
        device: torch.device,
        collect: Callable[[Iterator[LlamaLayer]], Sequence[LlamaLayer]] = tuple,
    ) -> LlamaBackbone:
        """Moves the weights out of `model`, layer by layer, so that they are never in memory twice."""
        inner: Any = model.model
        config: Any = model.config
        embed = inner.embed_tokens.weight.data.to(device)
        tied = bool(config.tie_word_embeddings)
        return cls(
            spec=read_spec(config, name, *linears_of(config), _generation_eos(model)),
            embed=embed,
            layers=collect(_move_layers(inner, int(config.num_hidden_layers), device)),
            norm=inner.norm.weight.data.to(device),
            head_weight=embed if tied else model.lm_head.weight.data.to(device),
            inv_freq=inner.rotary_emb.inv_freq.float().to(device),
            rope_scale=float(inner.rotary_emb.attention_scaling),
        )

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        lora: LoraView | None,
        *,
        checkpoint: bool = False,
    ) -> Tensor:
        x = functional.embedding(tokens, self.embed)
        rope = self.rotary(positions)
        for index in range(len(self.layers)):
            if checkpoint:
                x = recompute(self.layer, index, x, rope, attend, lora, use_reentrant=False)
            else:
                x = self.layer(index, x, rope, attend, lora)
        return rms_norm(x, self.norm, self.spec.eps)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, 1, head_dim / 2] of the positions."""
        return rotary_embedding(positions, self.inv_freq, self.rope_scale, self.dtype)

    def layer(
        self, index: int, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend, lora: LoraView | None
    ) -> Tensor:
        deltas = [None if lora is None else lora.at((index, name)) for name in GROUPS]
        spec, weights = self.spec, self.layers[index]
        shape = (spec.heads, spec.kv_heads, spec.head_dim)
        q, k, v = qkv_heads(x, weights, rope, deltas[0], shape, spec.eps)
        attn_out = attend(index, q, k, v).reshape(x.shape[0], -1)
        return finish_layer(x, attn_out, weights, deltas[1:], spec.eps)

    def outputs(self, group: Site) -> tuple[int, ...]:
        """Rows that each linear of the group has in their stacked matrix."""
        return tuple(self.spec.linears[member].outputs for member in self.spec.groups[group])

    def merged(self, weights: LoraWeights) -> LlamaBackbone:
        layers = tuple(merge_layer(self, index, weights) for index in range(len(self.layers)))
        return replace(self, layers=layers, head_weight=merge_head(self, weights))


def qkv_heads(
    x: Tensor,
    weights: LlamaLayer,
    rope: tuple[Tensor, Tensor],
    delta: LoraDelta | None,
    shape: tuple[int, int, int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [T, heads, D] of hidden states [T, H]; `shape`: heads, kv_heads, D."""
    heads, kv_heads, dim = shape
    normed = rms_norm(x, weights.input_norm, eps)
    widths = [heads * dim, kv_heads * dim, kv_heads * dim]
    outs = _project(normed, weights.qkv, weights.qkv_bias, delta, widths)
    q, k, v = (out.view(x.shape[0], -1, dim) for out in outs)
    if weights.q_norm is not None and weights.k_norm is not None:
        q, k = rms_norm(q, weights.q_norm, eps), rms_norm(k, weights.k_norm, eps)
    return rotate(q, rope), rotate(k, rope), v


def finish_layer(
    x: Tensor, attn_out: Tensor, weights: LlamaLayer, deltas: Sequence[LoraDelta | None], eps: float
) -> Tensor:
    """The layer's output from its input and the attention output [T, heads * D]."""
    x = x + attention_output(attn_out, weights, deltas[0])
    return x + feed_forward(x, weights, deltas[1:], eps)


def attention_output(attn_out: Tensor, weights: LlamaLayer, delta: LoraDelta | None) -> Tensor:
    """The term that attention adds to the layer's input."""
    return _project(attn_out, weights.o, weights.o_bias, delta, [weights.o.shape[0]])[0]


def feed_forward(x: Tensor, weights: LlamaLayer, deltas: Sequence[LoraDelta | None], eps: float) -> Tensor:
    """The term that the feed-forward layer adds to x, the sum of the layer's input and its attention."""
    gate_up_delta, down_delta = deltas
    normed = rms_norm(x, weights.post_norm, eps)
    widths = [weights.down.shape[1]] * 2
    gate, up = _project(normed, weights.gate_up, None, gate_up_delta, widths)
    return _project(functional.silu(gate) * up, weights.down, None, down_delta, [x.shape[1]])[0]


def rotary_embedding(
    positions: Tensor, inv_freq: Tensor, scale: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, 1, head_dim / 2] of the positions."""
    angle = positions[:, None].float() * inv_freq
    cos, sin = angle.cos() * scale, angle.sin() * scale
    return cos.to(dtype)[:, None], sin.to(dtype)[:, None]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In fp32, rounded before the weight is applied, as transformers does."""
    x_fp32 = x.float()
    x_fp32 = x_fp32 * torch.rsqrt(x_fp32.square().mean(-1, keepdim=True) + eps)
    return weight * x_fp32.to(x.dtype)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding of the two halves of each head."""
    cos, sin = rope
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _project(
    x: Tensor, weight: Tensor, bias: Tensor | None, delta: LoraDelta | None, widths: list[int]
) -> tuple[Tensor, ...]:
    """The outputs of linears with the same input, with the LoRA delta added."""
    outs = torch.split(functional.linear(x, weight, bias), widths, dim=-1)
    return outs if delta is None else delta.add(x, outs)


def _generation_eos(model: Any) -> Any:
    return model.generation_config.eos_token_id if model.generation_config else None


def _move_layers(inner: Any, count: int, device: torch.device) -> Iterator[LlamaLayer]:
    for index in range(count):
        layer = _fuse(inner.layers[index], device)
        inner.layers[index] = torch.nn.Identity()
        yield layer


def _fuse(layer: Any, device: torch.device) -> LlamaLayer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    biased = projections[0].bias is not None
    return LlamaLayer(
        input_norm=layer.input_layernorm.weight.data.to(device),
        qkv=torch.cat([projection.weight.data for projection in projections]).to(device),
        qkv_bias=(
            torch.cat([projection.bias.data for projection in projections]).to(device) if biased else None
        ),
        q_norm=norms[0].weight.data.to(device) if norms[0] is not None else None,
        k_norm=norms[1].weight.data.to(device) if norms[1] is not None else None,
        o=attention.o_proj.weight.data.to(device),
        o_bias=attention.o_proj.bias.data.to(device) if attention.o_proj.bias is not None else None,
        post_norm=layer.post_attention_layernorm.weight.data.to(device),
        gate_up=torch.cat([mlp.gate_proj.weight.data, mlp.up_proj.weight.data]).to(device),
        down=mlp.down_proj.weight.data.to(device),
    )


def linears_of(config: Any) -> tuple[dict[Site, Linear], dict[Site, tuple[Site, ...]]]:
    """The linear layers of a configuration, and which of them are applied as one."""
    width, inner = int(config.hidden_size), int(config.intermediate_size)
    dim = int(getattr(config, "head_dim", None) or width // config.num_attention_heads)
    q, kv = config.num_attention_heads * dim, config.num_key_value_heads * dim
    linears: dict[Site, Linear] = {}
    groups: dict[Site, tuple[Site, ...]] = {}
    for index in range(int(config.num_hidden_layers)):
        attn, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        linears[index, "q"] = Linear(f"{attn}.q_proj", width, q, "attn")
        linears[index, "k"] = Linear(f"{attn}.k_proj", width, kv, "attn")
        linears[index, "v"] = Linear(f"{attn}.v_proj", width, kv, "attn")
        linears[index, "o"] = Linear(f"{attn}.o_proj", q, width, "attn")
        linears[index, "gate"] = Linear(f"{mlp}.gate_proj", width, inner, "mlp")
        linears[index, "up"] = Linear(f"{mlp}.up_proj", width, inner, "mlp")
        linears[index, "down"] = Linear(f"{mlp}.down_proj", inner, width, "mlp")
        groups[index, "qkv"] = ((index, "q"), (index, "k"), (index, "v"))
        groups[index, "o"] = ((index, "o"),)
        groups[index, "gate_up"] = ((index, "gate"), (index, "up"))
        groups[index, "down"] = ((index, "down"),)
    linears[HEAD] = Linear("lm_head", width, int(config.vocab_size), "unembed")
    groups[HEAD] = (HEAD,)
    return linears, groups


def merge_layer(backbone: LlamaBackbone, index: int, weights: LoraWeights) -> LlamaLayer:
    """A layer's weights with the adapter added."""
    layer = backbone.layers[index]
    return replace(
        layer,
        qkv=_merge(backbone, layer.qkv, (index, "qkv"), weights),
        o=_merge(backbone, layer.o, (index, "o"), weights),
        gate_up=_merge(backbone, layer.gate_up, (index, "gate_up"), weights),
        down=_merge(backbone, layer.down, (index, "down"), weights),
    )


def merge_head(backbone: LlamaBackbone, weights: LoraWeights) -> Tensor:
    """[vocab, hidden] with the adapter added; unchanged if the adapter does not train the LM head."""
    return _merge(backbone, backbone.head_weight, HEAD, weights)


def _merge(backbone: LlamaBackbone, base: Tensor, site: Site, weights: LoraWeights) -> Tensor:
    group = weights.groups.get(site)
    if group is None:
        return base
    return merge_delta(base, group, backbone.outputs(site))
