"""Our own forward pass for the Llama-like families: Llama, SmolLM 1 and 2, Mistral, Qwen2, Qwen3.

Query, key and value are one product, gate and up another, and there is no batch dimension, so packed tokens
cost nothing extra. Equal to transformers' own logits (tests hold both to 1e-4 in fp32). It never waits for
the device, so a pass can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

from hermes.engine.attention.base import Attend
from hermes.engine.lora.weights import LoraDelta, LoraView, LoraWeights, with_delta
from hermes.engine.spec import HEAD, Linear, ModelSpec, Site, read_spec

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")

GROUPS = ("qkv", "o", "gate_up", "down")
_LENGTH_DEPENDENT = ("dynamic", "longrope")


def why_not_compact(config: PretrainedConfig) -> str:
    """Empty where the compact form is exact for this configuration; else the reason."""
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
    """One layer's weights, the products that share an input fused."""

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
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    head_weight: Tensor
    inv_freq: Tensor
    """[head_dim / 2], fp32, from transformers' own rotary module; scaling variants included."""
    rope_scale: float

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    @classmethod
    def from_model(cls, model: Any, name: str, device: torch.device) -> LlamaBackbone:
        """Takes the weights out of `model`, layer by layer, so that both never lie in memory whole."""
        inner: Any = model.model
        config: Any = model.config
        embed = inner.embed_tokens.weight.data.to(device)
        tied = bool(config.tie_word_embeddings)
        layers = []
        for index in range(int(config.num_hidden_layers)):
            layers.append(_fuse(inner.layers[index], device))
            inner.layers[index] = torch.nn.Identity()
        return cls(
            spec=read_spec(config, name, *_linears(config), model.generation_config),
            embed=embed,
            layers=tuple(layers),
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
        turn = self.rotary(positions)
        for index in range(len(self.layers)):
            if checkpoint:
                x = recompute(self.layer, index, x, turn, attend, lora, use_reentrant=False)
            else:
                x = self.layer(index, x, turn, attend, lora)
        return rms_norm(x, self.norm, self.spec.eps)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, 1, head_dim / 2] of the positions."""
        angle = positions[:, None].float() * self.inv_freq
        cos, sin = angle.cos() * self.rope_scale, angle.sin() * self.rope_scale
        return cos.to(self.dtype)[:, None], sin.to(self.dtype)[:, None]

    def layer(
        self, index: int, x: Tensor, turn: tuple[Tensor, Tensor], attend: Attend, lora: LoraView | None
    ) -> Tensor:
        deltas = [None if lora is None else lora.at((index, name)) for name in GROUPS]
        spec, weights = self.spec, self.layers[index]
        shape = (spec.heads, spec.kv_heads, spec.head_dim)
        q, k, v = before_attention(x, weights, turn, deltas[0], shape, spec.eps)
        seen = attend(index, q, k, v).reshape(x.shape[0], -1)
        return after_attention(x, seen, weights, deltas[1:], spec.eps)

    def merged(self, weights: LoraWeights) -> LlamaBackbone:
        layers = tuple(merge_layer(self, index, weights) for index in range(len(self.layers)))
        return replace(self, layers=layers, head_weight=merge_head(self, weights))


def before_attention(
    x: Tensor,
    weights: LlamaLayer,
    turn: tuple[Tensor, Tensor],
    delta: LoraDelta | None,
    shape: tuple[int, int, int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [T, heads, D] of hidden states [T, H]; `shape`: heads, kv_heads, D."""
    heads, kv_heads, dim = shape
    read = rms_norm(x, weights.input_norm, eps)
    widths = [heads * dim, kv_heads * dim, kv_heads * dim]
    outs = _project(read, weights.qkv, weights.qkv_bias, delta, widths)
    q, k, v = (out.view(x.shape[0], -1, dim) for out in outs)
    if weights.q_norm is not None and weights.k_norm is not None:
        q, k = rms_norm(q, weights.q_norm, eps), rms_norm(k, weights.k_norm, eps)
    return rotate(q, turn), rotate(k, turn), v


def after_attention(
    x: Tensor, seen: Tensor, weights: LlamaLayer, deltas: Sequence[LoraDelta | None], eps: float
) -> Tensor:
    """The layer's output, from its input and what attention gathered [T, heads * D]."""
    to_o, to_gate_up, to_down = deltas
    width = [x.shape[1]]
    x = x + _project(seen, weights.o, weights.o_bias, to_o, width)[0]
    read = rms_norm(x, weights.post_norm, eps)
    widths = [weights.down.shape[1]] * 2
    gate, up = _project(read, weights.gate_up, None, to_gate_up, widths)
    return x + _project(functional.silu(gate) * up, weights.down, None, to_down, width)[0]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In fp32, rounded before the weight is applied, as transformers does."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions, on halves."""
    cos, sin = turn
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _project(
    x: Tensor, weight: Tensor, bias: Tensor | None, delta: LoraDelta | None, widths: list[int]
) -> tuple[Tensor, ...]:
    """The outputs of linears that read the same input, the adapter's part added."""
    outs = torch.split(functional.linear(x, weight, bias), widths, dim=-1)
    return outs if delta is None else delta.add(x, outs)


def _fuse(layer: Any, device: torch.device) -> LlamaLayer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    biased = projections[0].bias is not None
    return LlamaLayer(
        input_norm=layer.input_layernorm.weight.data.to(device),
        qkv=torch.cat([one.weight.data for one in projections]).to(device),
        qkv_bias=torch.cat([one.bias.data for one in projections]).to(device) if biased else None,
        q_norm=norms[0].weight.data.to(device) if norms[0] is not None else None,
        k_norm=norms[1].weight.data.to(device) if norms[1] is not None else None,
        o=attention.o_proj.weight.data.to(device),
        o_bias=attention.o_proj.bias.data.to(device) if attention.o_proj.bias is not None else None,
        post_norm=layer.post_attention_layernorm.weight.data.to(device),
        gate_up=torch.cat([mlp.gate_proj.weight.data, mlp.up_proj.weight.data]).to(device),
        down=mlp.down_proj.weight.data.to(device),
    )


def _linears(config: Any) -> tuple[dict[Site, Linear], dict[Site, tuple[Site, ...]]]:
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
    """A layer's weights with the adapter's part added."""
    layer = backbone.layers[index]
    return replace(
        layer,
        qkv=_add(backbone, layer.qkv, (index, "qkv"), weights),
        o=_add(backbone, layer.o, (index, "o"), weights),
        gate_up=_add(backbone, layer.gate_up, (index, "gate_up"), weights),
        down=_add(backbone, layer.down, (index, "down"), weights),
    )


def merge_head(backbone: LlamaBackbone, weights: LoraWeights) -> Tensor:
    """[vocab, hidden] with the adapter's part added; the backbone's own where it has none."""
    return _add(backbone, backbone.head_weight, HEAD, weights)


def _add(backbone: LlamaBackbone, base: Tensor, site: Site, weights: LoraWeights) -> Tensor:
    group = weights.groups.get(site)
    if group is None:
        return base
    outputs = tuple(backbone.spec.linears[member].outputs for member in backbone.spec.groups[site])
    return with_delta(base, group, outputs)
