"""The compact backbone's decode step in few kernels: one token for each of many sequences.

Computes what `CompactBackbone.hidden` computes with an `Attend` over the pool, without adapters: those are
merged into the weights beforehand. Nothing here waits for the device, so a step can be captured in a graph.
"""

from __future__ import annotations

from typing import TypeGuard

from torch import Tensor
from torch.nn.functional import embedding, linear

from hermes.engine import kernels
from hermes.engine.compact import CompactBackbone
from hermes.engine.kv import KvPool


def decode_hidden(
    backbone: CompactBackbone, pool: KvPool, tokens: Tensor, cells: Tensor, lengths: Tensor
) -> Tensor:
    """[rows, hidden] after `tokens` [rows], which stand at position `lengths` of the slots at `cells`."""
    spec = backbone.spec
    x = embedding(tokens, backbone.embed)
    delta: Tensor | None = None
    for index, layer in enumerate(backbone.layers):
        read = kernels.add_norm(x, delta, layer.input_norm, spec.eps)
        qkv = linear(read, layer.qkv, layer.qkv_bias)
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        keys, values = pool.keys[index], pool.values[index]
        q = kernels.place(
            qkv, keys, values, cells, lengths, backbone.inv_freq, backbone.rope_scale, norms, spec.eps
        )
        seen = kernels.attend_rows(q, keys, values, cells, lengths, spec.windows[index])
        delta = linear(seen.view(len(tokens), -1), layer.o, layer.o_bias)
        read = kernels.add_norm(x, delta, layer.post_norm, spec.eps)
        delta = linear(kernels.gate(linear(read, layer.gate_up)), layer.down)
    return kernels.add_norm(x, delta, backbone.norm, spec.eps)


def fits(backbone: object) -> TypeGuard[CompactBackbone]:
    """Whether the kernels can take this backbone's shapes."""
    if not isinstance(backbone, CompactBackbone):
        return False
    dim, group = backbone.spec.head_dim, backbone.spec.heads // backbone.spec.kv_heads
    return dim >= 16 and dim & (dim - 1) == 0 and group <= kernels.MOST_SHARED
