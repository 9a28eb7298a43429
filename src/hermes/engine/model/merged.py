"""A copy of the model whose matrices have an adapter merged in.

Merging adds in fp32 and rounds once to the model's dtype. Training and sampling use the same rounded
matrices, so that both compute the same function.
"""

from __future__ import annotations

from dataclasses import replace

from hermes.engine.lora.weights import LoraWeights
from hermes.engine.model.llama import LlamaBackbone, merge_head, merge_layer


def copy_bytes(backbone: LlamaBackbone) -> int:
    """Size of the matrices that a copy does not share with the base model."""
    layers = sum(
        layer.qkv.nbytes + layer.o.nbytes + layer.gate_up.nbytes + layer.down.nbytes
        for layer in backbone.layers
    )
    return layers + backbone.head_weight.nbytes


def clone_matrices(base: LlamaBackbone) -> LlamaBackbone:
    """A backbone with copied matrices; embedding and norms are shared."""
    layers = tuple(
        replace(
            layer,
            qkv=layer.qkv.clone(),
            o=layer.o.clone(),
            gate_up=layer.gate_up.clone(),
            down=layer.down.clone(),
        )
        for layer in base.layers
    )
    return replace(base, layers=layers, head_weight=base.head_weight.clone())


def merge_into(buffers: LlamaBackbone, base: LlamaBackbone, weights: LoraWeights) -> None:
    """Writes the merged weights into existing buffers, layer by layer."""
    for index, buffer in enumerate(buffers.layers):
        layer = merge_layer(base, index, weights)
        buffer.qkv.copy_(layer.qkv)
        buffer.o.copy_(layer.o)
        buffer.gate_up.copy_(layer.gate_up)
        buffer.down.copy_(layer.down)
    buffers.head_weight.copy_(merge_head(base, weights))
