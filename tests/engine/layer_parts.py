"""Helpers of the tests of the manual training pass."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.attention.packed import DenseAttention, PackedAttention
from hermes.engine.attention.packing import Pack
from hermes.engine.attention.varlen import node_tree, shared_key_copies
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.adapter_table import AdapterRows
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.load import wrap_model
from hermes.engine.training import layer_plain
from hermes.engine.training.manual_backward import LayerStack
from hermes.engine.types import Ints, LoraConfig

from .naive import shake
from .tiny import tiny_model

CPU = torch.device("cpu")
PLAIN = layer_plain


def texts() -> list[Ints]:
    """Two groups, one of which branches twice, and a text of its own."""
    rng = np.random.default_rng(1)
    first, second, third = (rng.integers(0, 512, length) for length in (20, 12, 11))
    ends = [rng.integers(0, 512, length) for length in (3, 9, 14, 5, 6, 7)]
    deep = np.concatenate([first, second])
    beginnings = (first, first, deep, deep, third, third)
    return [np.concatenate(pair) for pair in zip(beginnings, ends, strict=True)] + [rng.integers(0, 512, 17)]


def made(family: str, **config: Any) -> tuple[LlamaBackbone, Adapter]:
    backbone = wrap_model(tiny_model(family), family)
    assert isinstance(backbone, LlamaBackbone)
    adapter = Adapter(backbone.spec, LoraConfig(**{"rank": 4, "alpha": 4.0, "seed": 3, **config}), CPU)
    shake(adapter)
    return backbone, adapter


class PlainVarlen:
    """The variable-length kernel's part in plain torch: each node's queries over the keys it sees."""

    def __init__(self, batch: Pack) -> None:
        tree = node_tree(batch)
        self.copies = shared_key_copies(batch, tree, CPU)
        self._query_lengths, self._key_lengths = tree.query_lengths.tolist(), tree.key_lengths.tolist()

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        pieces = []
        keys, values = (torch.split(one, self._key_lengths) for one in (k, v))
        for query, key, value in zip(torch.split(q, self._query_lengths), keys, values, strict=True):
            mask = torch.ones(len(query), len(key), dtype=torch.bool).tril(len(key) - len(query))
            a, b, c = (one.transpose(0, 1) for one in (query, key, value))
            piece = functional.scaled_dot_product_attention(a, b, c, attn_mask=mask, enable_gqa=True)
            pieces.append(piece.transpose(0, 1))
        return torch.cat(pieces), ()

    def backward(
        self,
        layer: int,
        grad: Tensor,
        heads: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        weights: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            leaves = [one.detach().requires_grad_() for one in heads]
            dq, dk, dv = torch.autograd.grad(self.forward(layer, *leaves)[0], leaves, grad)
        return dq.contiguous(), dk.contiguous(), dv.contiguous()


def states_and_gradient(
    family: str,
    batch: Pack,
    ops: ModuleType,
    *,
    repeated: bool,
    given: tuple[LlamaBackbone, Adapter] | None = None,
    kernels: bool = False,
) -> tuple[Tensor, Tensor]:
    """The states, and the gradient of a fixed pull on them. `kernels`: a GPU's kernels add the adapter."""
    backbone, adapter = given or made(family)
    attention: PackedAttention = (
        PlainVarlen(batch) if repeated else DenseAttention(batch, [None] * backbone.spec.layers, CPU)
    )
    rows = [(0, len(batch.tokens))]
    lora = AdapterRows.for_spans(adapter.table(backbone.dtype), rows) if kernels else None
    stack = LayerStack(backbone, adapter, attention, ops, lora)
    tokens, positions = torch.as_tensor(batch.tokens), torch.as_tensor(batch.positions)
    states = stack.forward(tokens, positions, keep=True)
    pull = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).to(states.dtype)
    gradient = torch.zeros_like(adapter.gradient)
    stack.backward(pull, gradient)
    return states, gradient
