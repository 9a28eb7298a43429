"""The compact backbone in few kernels, over the pool of keys and values: what sampling on a GPU runs.

Computes what `LlamaBackbone.hidden` computes with an `Attend` over the pool, without adapters: those are
merged into the weights beforehand. Nothing here waits for the device, so a step can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import embedding, linear

from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.kernels import decode
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.spec import ModelSpec

Gather = Callable[[int, Tensor], Tensor]
"""(layer, rotated queries [T, heads, D]) to what they attend to in the pool, [T, heads, D]."""


def fused_hidden(
    backbone: LlamaBackbone, pool: KvPool, tokens: Tensor, cells: Tensor, positions: Tensor, gather: Gather
) -> Tensor:
    """[T, hidden] of `tokens` [T] at `positions` of the slots at `cells`, where their keys and values go."""
    spec = backbone.spec
    x = embedding(tokens, backbone.embed)
    delta: Tensor | None = None
    for index, layer in enumerate(backbone.layers):
        read = decode.add_norm(x, delta, layer.input_norm, spec.eps)
        qkv = linear(read, layer.qkv, layer.qkv_bias)
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        keys, values = pool.keys[index], pool.values[index]
        q = decode.place(
            qkv, keys, values, cells, positions, backbone.inv_freq, backbone.rope_scale, norms, spec.eps
        )
        delta = linear(gather(index, q).view(len(tokens), -1), layer.o, layer.o_bias)
        read = decode.add_norm(x, delta, layer.post_norm, spec.eps)
        delta = linear(decode.gate(linear(read, layer.gate_up)), layer.down)
    return decode.add_norm(x, delta, backbone.norm, spec.eps)


def gather_rows(spec: ModelSpec, pool: KvPool, cells: Tensor, lengths: Tensor) -> Gather:
    """One token a row, at the end of its slot: decoding."""

    def gather(layer: int, q: Tensor) -> Tensor:
        return decode.attend_rows(
            q, pool.keys[layer], pool.values[layer], cells, lengths, spec.windows[layer]
        )

    return gather
