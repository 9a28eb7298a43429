"""A Llama-like model of which this process has one rank's part; the ranks compute it together.

It is a `Backbone` on every rank: all of them call `hidden` with the same positions and adapters, each with
keys and values of its own heads. The leader embeds the tokens and sends the states; a layer's two sums over
the ranks are its only other communication, and two more in the backward pass. All ranks have the final
hidden states; only the leader has the LM head.

A rank's part of an adapter is rows of B where the linear is cut by rows, columns of A where by columns.

Parts are views, so that gradients flow back to the whole matrices, with zeros where another rank computes.
The sum of all ranks' gradients is therefore the gradient of the adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recompute

from hermes.engine.attention.base import Attend
from hermes.engine.lora.weights import LoraDelta, LoraGroup, LoraPart, LoraSpans, LoraView, LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import (
    GROUPS,
    LlamaLayer,
    attention_output,
    feed_forward,
    qkv_heads,
    rms_norm,
    rotary_embedding,
)
from hermes.engine.model.llama_files import LayerCut, read_layer, rotary_frequencies, spec_of_folder
from hermes.engine.model.safetensors_reader import SafetensorsReader
from hermes.engine.spec import ModelSpec, Site
from hermes.engine.tensor_parallel.collectives import broadcast, sum_gradients, sum_outputs
from hermes.engine.tensor_parallel.plan import Shard, local_spec, plan_shards
from hermes.engine.types import EngineUserError

if TYPE_CHECKING:
    from hermes.engine.spec import ModelConfig


@dataclass(frozen=True, slots=True, eq=False)
class ShardedLlama:
    spec: ModelSpec
    """The whole model's."""
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
    source: str,
    config: ModelConfig,
    rank: int,
    size: int,
    device: torch.device,
    dtype: torch.dtype,
) -> ShardedLlama:
    """Reads one rank's part of the model. EngineUserError: its files cannot be used."""
    folder = _folder(source)
    spec = spec_of_folder(folder, source, config)
    shard = plan_shards(spec, size)[rank]
    reader = SafetensorsReader(folder, source, dtype, device)
    inv_freq, rope_scale = rotary_frequencies(config)
    embed = reader.matrix("embed_tokens.weight") if shard.is_leader else None
    head = embed
    if shard.is_leader and not spec.tied:
        head = reader.matrix("lm_head.weight")
    cut = LayerCut(shard.queries, shard.keys, shard.inner, has_output_bias=shard.is_leader)
    return ShardedLlama(
        spec=spec,
        shard=shard,
        layers=tuple(read_layer(reader, spec, index, cut) for index in range(spec.layers)),
        norm=reader.vector("norm.weight"),
        inv_freq=inv_freq.to(device),
        rope_scale=rope_scale,
        embed=embed,
        head=head,
    )


def _folder(source: str) -> Path:
    """The folder itself, or where the hub's files were downloaded to."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=["*.safetensors", "*.json"]))
    except (OSError, ValueError) as error:
        raise EngineUserError(
            f"The base model '{source}' could not be loaded: {str(error).splitlines()[0]}",
            "Use a folder with config.json and safetensors, or a hub name that can be reached.",
        ) from error


def shard_lora(lora: LoraView, shard: Shard) -> LoraView:
    """The rank's part of one adapter, or of several over spans of the tokens."""
    if isinstance(lora, LoraSpans):
        return LoraSpans(
            tuple(
                (start, end, None if weights is None else shard_lora(weights, shard))
                for start, end, weights in lora.spans
            )
        )
    assert isinstance(lora, LoraWeights)
    return ShardedLora(lora, shard)


@dataclass(frozen=True, slots=True, eq=False)
class ShardedLora(LoraView):
    weights: LoraWeights
    shard: Shard

    def at(self, group: Site) -> LoraDelta | None:
        whole = self.weights.at(group)
        return None if whole is None else _cut(whole, group[1], self.shard)


def _cut(group: LoraGroup, name: str, shard: Shard) -> LoraGroup:
    columns = {"o": shard.queries, "down": shard.inner}.get(name)
    if columns is not None:
        return LoraGroup(group.a[:, columns], group.parts)
    rows = {"qkv": (shard.queries, shard.keys, shard.keys), "gate_up": (shard.inner, shard.inner)}[name]
    return LoraGroup(
        group.a,
        tuple(
            part and LoraPart(part.b[part_rows], part.scale)
            for part, part_rows in zip(group.parts, rows, strict=True)
        ),
    )
