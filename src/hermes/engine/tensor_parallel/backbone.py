"""A Llama-like model of which this process has one rank's part; the ranks compute it together.

It is a `Backbone` on every rank: all of them call `hidden` with the same positions and adapters, each with
keys and values of its own heads. The leader embeds the tokens and sends the states; a layer's two sums over
the ranks are its only other communication, and two more in the backward pass. All ranks have the final
hidden states; only the leader has the LM head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

from hermes.engine.attention.base import Attend
from hermes.engine.lora.weights import LoraView, LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import (
    GROUPS,
    LlamaLayer,
    attention_output,
    feed_forward,
    linears_of,
    qkv_heads,
    rms_norm,
    rotary_embedding,
)
from hermes.engine.spec import ModelSpec, read_spec
from hermes.engine.tensor_parallel.checkpoint import CheckpointReader
from hermes.engine.tensor_parallel.collectives import broadcast, sum_gradients, sum_outputs
from hermes.engine.tensor_parallel.lora import shard_lora
from hermes.engine.tensor_parallel.plan import Shard, local_spec, plan_shards

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True, eq=False)
class ShardedLlama:
    spec: ModelSpec
    """Of the whole model."""
    shard: Shard
    layers: Sequence[LlamaLayer]
    """This rank's part of each."""
    norm: Tensor
    inv_freq: Tensor
    rope_scale: float
    embed: Tensor | None
    """None but on the leader."""
    head: Tensor | None

    @property
    def local_spec(self) -> ModelSpec:
        """The shape of this rank's attention."""
        return local_spec(self.spec, self.shard)

    @property
    def device(self) -> torch.device:
        return self.norm.device

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype

    @property
    def head_weight(self) -> Tensor:
        assert self.head is not None, "only the leader has the LM head"
        return self.head

    @property
    def nbytes(self) -> int:
        """Memory of this rank's matrices."""
        matrices = [getattr(layer, name) for layer in self.layers for name in GROUPS]
        ends = [self.embed, None if self.head is self.embed else self.head]
        return sum(int(matrix.nbytes) for matrix in (*matrices, *ends) if matrix is not None)

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        lora: LoraView | None,
        *,
        checkpoint: bool = False,
    ) -> Tensor:
        """On every rank but the leader, `tokens` may be any of the same number."""
        x = self._embed(tokens)
        rope = rotary_embedding(positions, self.inv_freq, self.rope_scale, self.dtype)
        part = None if lora is None else shard_lora(lora, self.shard)
        for index in range(len(self.layers)):
            if checkpoint:
                x = recompute(self._layer, index, x, rope, attend, part, use_reentrant=False)
            else:
                x = self._layer(index, x, rope, attend, part)
        return rms_norm(x, self.norm, self.spec.eps)

    def merged(self, weights: LoraWeights) -> Backbone:
        """Never called: runners and passes of a sharded model apply adapters beside the weights."""
        raise AssertionError("no adapter is merged into a model that several ranks have")

    def _embed(self, tokens: Tensor) -> Tensor:
        if self.embed is not None:
            return broadcast(functional.embedding(tokens, self.embed))
        return broadcast(torch.empty(len(tokens), self.spec.hidden, dtype=self.dtype, device=self.device))

    def _layer(
        self, index: int, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend, lora: LoraView | None
    ) -> Tensor:
        deltas = [None if lora is None else lora.at((index, name)) for name in GROUPS]
        weights, eps, heads = self.layers[index], self.spec.eps, self.shard.heads
        kv_heads = self.shard.kv_heads
        shape = (heads.stop - heads.start, kv_heads.stop - kv_heads.start, self.spec.head_dim)
        q, k, v = qkv_heads(sum_gradients(x), weights, rope, deltas[0], shape, eps)
        attn_out = attend(index, q, k, v).reshape(x.shape[0], -1)
        x = x + sum_outputs(attention_output(attn_out, weights, deltas[1]))
        return x + sum_outputs(feed_forward(sum_gradients(x), weights, deltas[2:], eps))


def load_shard(
    source: str, config: PretrainedConfig, rank: int, size: int, device: torch.device, dtype: torch.dtype
) -> ShardedLlama:
    """Reads one rank's part of the model. EngineUserError: its files cannot be used."""
    spec = _spec(source, config)
    shard = plan_shards(spec, size)[rank]
    reader = CheckpointReader(source, dtype, device)
    rotary = _rotary_module(config)
    embed = reader.matrix("embed_tokens.weight") if shard.is_leader else None
    head = embed
    if shard.is_leader and not spec.tied:
        head = reader.matrix("lm_head.weight")
    return ShardedLlama(
        spec=spec,
        shard=shard,
        layers=tuple(_read_layer(reader, index, shard) for index in range(spec.layers)),
        norm=reader.vector("norm.weight"),
        inv_freq=rotary.inv_freq.float().to(device),
        rope_scale=float(rotary.attention_scaling),
        embed=embed,
        head=head,
    )


def _read_layer(reader: CheckpointReader, index: int, shard: Shard) -> LlamaLayer:
    layer = f"layers.{index}"
    attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    cuts = {"q_proj": shard.queries, "k_proj": shard.keys, "v_proj": shard.keys}
    biased = reader.has(f"{attn}.q_proj.bias")
    has_norms = reader.has(f"{attn}.q_norm.weight")
    # Added once, not by every rank.
    has_o_bias = shard.is_leader and reader.has(f"{attn}.o_proj.bias")
    return LlamaLayer(
        input_norm=reader.vector(f"{layer}.input_layernorm.weight"),
        qkv=reader.stacked({f"{attn}.{name}.weight": rows for name, rows in cuts.items()}),
        qkv_bias=reader.stacked({f"{attn}.{name}.bias": rows for name, rows in cuts.items()})
        if biased
        else None,
        q_norm=reader.vector(f"{attn}.q_norm.weight") if has_norms else None,
        k_norm=reader.vector(f"{attn}.k_norm.weight") if has_norms else None,
        o=reader.matrix(f"{attn}.o_proj.weight", columns=shard.queries),
        o_bias=reader.vector(f"{attn}.o_proj.bias") if has_o_bias else None,
        post_norm=reader.vector(f"{layer}.post_attention_layernorm.weight"),
        gate_up=reader.stacked(
            {f"{mlp}.gate_proj.weight": shard.inner, f"{mlp}.up_proj.weight": shard.inner}
        ),
        down=reader.matrix(f"{mlp}.down_proj.weight", columns=shard.inner),
    )


def _spec(source: str, config: PretrainedConfig) -> ModelSpec:
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(source)
    except OSError:  # it has no generation_config.json
        generation = GenerationConfig.from_model_config(config)
    return read_spec(config, source, *linears_of(config), generation)


def _rotary_module(config: PretrainedConfig) -> Any:
    """The rotary module of the model's family, which computes the frequencies; of a model without weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return type(model.model.rotary_emb)(config)
