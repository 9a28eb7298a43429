"""The Llama backbone in few kernels, over the pool of keys and values: what sampling on a GPU runs.

Computes what `LlamaBackbone.hidden` computes with an `Attend` over the pool. Nothing here synchronises with
the device, so a step can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor
from torch.nn.functional import embedding

from hermes.engine.attention.base import Attend
from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.attention.query_blocks import query_blocks
from hermes.engine.kernels import decode, rowwise
from hermes.engine.kernels.attention import attend_blocks, attend_rows
from hermes.engine.lora.adapter_table import AdapterRows
from hermes.engine.model import products
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.sampling.runner import PrefillChunk
from hermes.engine.spec import ModelSpec, Site

PoolAttention = Callable[[int, Tensor], Tensor]
"""(layer, rotated queries [T, heads, D]) to their attention output over the pool, [T, heads, D]."""


def fused_hidden(
    backbone: LlamaBackbone,
    pool: KvPool,
    tokens: Tensor,
    slot_starts: Tensor,
    positions: Tensor,
    rope: tuple[Tensor, Tensor],
    attention: PoolAttention,
    lora: AdapterRows | None,
) -> Tensor:
    """[T, hidden] of `tokens` [T], whose keys and values are stored at `positions` of the slots.

    `rope` has the cosines and sines of every position, [positions, head_dim / 2]. `lora` is None if no row
    has an adapter.
    """
    spec, invariant = backbone.spec, backbone.batch_invariant

    def linear(site: Site, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if lora is None:
            return products.linear(x, weight, bias, invariant=invariant)
        outputs = backbone.outputs(site)
        return products.lora_linear(x, weight, bias, lora, site, outputs, invariant=invariant)

    x = embedding(tokens, backbone.embed)
    delta: Tensor | None = None
    for index, layer in enumerate(backbone.layers):
        x, normed = rowwise.add_norm(x, delta, layer.input_norm, spec.eps, in_place=True)
        qkv = linear((index, "qkv"), normed, layer.qkv, layer.qkv_bias)
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        keys, values = pool.keys[index], pool.values[index]
        q = decode.rotate_and_cache(qkv, keys, values, slot_starts, positions, rope, norms, spec.eps)
        attn_out = attention(index, q).view(len(tokens), -1)
        delta = linear((index, "o"), attn_out, layer.o, layer.o_bias)
        x, normed = rowwise.add_norm(x, delta, layer.post_norm, spec.eps, in_place=True)
        act = rowwise.silu_and_mul(linear((index, "gate_up"), normed, layer.gate_up))
        delta = linear((index, "down"), act, layer.down)
    return rowwise.add_norm(x, delta, backbone.norm, spec.eps, in_place=True)[1]


def decode_attention(
    spec: ModelSpec, pool: KvPool, slot_starts: Tensor, lengths: Tensor, longest: int
) -> PoolAttention:
    """Attention of one token per row, at position `lengths` of its slot; `longest` as in `attend_rows`."""

    def attention(layer: int, q: Tensor) -> Tensor:
        keys, values = pool.keys[layer], pool.values[layer]
        return attend_rows(q, keys, values, slot_starts, lengths, longest, spec.windows[layer])

    return attention


class PrefillAttention:
    """Packed prompt chunks of any length in one launch, with the bits of the decode step.

    Each attends, causally, to the tokens in its slot and to itself.
    """

    def __init__(self, spec: ModelSpec, pool: KvPool, chunks: Sequence[PrefillChunk]) -> None:
        self._spec, self._pool = spec, pool
        lengths, slot_starts, offsets = np.array(
            [(len(chunk.tokens), chunk.slot_start, chunk.offset) for chunk in chunks]
        ).T
        heads_per_kv = spec.heads // spec.kv_heads
        self._blocks = query_blocks(lengths, slot_starts, offsets, heads_per_kv, pool.keys.device)

    def attend(self, kv_indices: Tensor) -> Attend:
        """For a backbone's own forward pass; new keys and values are stored at `kv_indices`."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._pool.write(layer, kv_indices, k, v)
            return self.from_pool(layer, q)

        return attend

    def from_pool(self, layer: int, q: Tensor) -> Tensor:
        """Attention output of the queries, whose keys and values are all in the pool."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        return attend_blocks(q, keys, values, self._blocks, self._spec.windows[layer])[0]
