"""The compact backbone's training pass, both directions written out: no graph is recorded, nothing compiled.

Forwards and backwards are the matrix products and one function for what lies between two of them
(`layer_plain`, `layer_kernels`), so that a layer costs the host few calls. The frozen weights have no
gradient; those of the adapter's matrices are written where `layer_weights` takes them from. Equal to
`LlamaBackbone.hidden` under autograd (tests hold both to the naive gradients).

An adapter's part of a product is in the product: its input has the columns x·Aᵀ behind it, the weight has B.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from hermes.engine.attention.packed import PackedAttention
from hermes.engine.lora.adapter import Adapter
from hermes.engine.model.llama import LlamaBackbone, LlamaLayer
from hermes.engine.training.layer_weights import LayerLayout, LoraPair, layout_of, side_by_side


@dataclass(slots=True, eq=False)
class _Activations:
    """What the backward pass of a layer needs of its forward pass."""

    x: Tensor
    read: Tensor
    """The norm of x, with the adapter's columns."""
    raw: Tensor
    """Queries, keys and values before they are turned; overwritten by that where they have no norms."""
    qkv: Tensor
    kv: Tensor
    """Keys and values as attended to: those of shared rows repeated."""
    seen: Tensor
    weights: tuple[Tensor, ...]
    """Attention's own."""
    low: Tensor | None
    """The adapter's columns beside `seen`."""
    middle: Tensor
    """x after attention."""
    post: Tensor
    gate_up: Tensor
    act: Tensor


@dataclass(slots=True, eq=False)
class Stack:
    """One pass over one pack: `forward`, then at most once `backward`."""

    backbone: LlamaBackbone
    adapter: Adapter
    attention: PackedAttention
    points: ModuleType
    layout: LayerLayout | None = None
    pairs: list[dict[str, LoraPair]] = field(default_factory=list)
    angles: tuple[Tensor, Tensor] | None = None
    kept: list[_Activations | Tensor] = field(default_factory=list)
    """Per layer; its input alone where the layer is computed again."""
    last: Tensor | None = None
    """What the final norm reads."""

    @torch.no_grad()
    def forward(self, tokens: Tensor, positions: Tensor, *, keep: bool, checkpoint: bool = False) -> Tensor:
        """Final hidden states [T, hidden]; with `keep`, `backward` can follow."""
        backbone = self.backbone
        self.layout = layout_of(self.adapter)
        if self.layout is None:
            self.pairs = [{} for _ in backbone.layers]
        else:
            pairs = self.layout.pairs(self.layout.put(self.adapter, backbone.dtype))
            self.pairs = side_by_side(pairs, backbone.layers)
        cos, sin = backbone.rotary(positions)
        self.angles = cos[:, 0].contiguous(), sin[:, 0].contiguous()
        x, delta = embedding(tokens, backbone.embed), None
        for index in range(len(backbone.layers)):
            x, delta, kept = self._layer(index, x, delta)
            if keep and self.layout is not None:
                self.kept.append(kept.x if checkpoint else kept)
        states: Tensor
        self.last, states = self.points.add_norm(x, delta, backbone.norm, backbone.spec.eps, 0)
        return states

    @torch.no_grad()
    def backward(self, upstream: Tensor, gradient: Tensor) -> None:
        """Adds the gradients to the adapter's flat ones, given that of the hidden states."""
        if self.layout is None or self.last is None:
            return
        layout, eps = self.layout, self.backbone.spec.eps
        found = torch.zeros(
            layout.layers, layout.spread, dtype=self.backbone.dtype, device=self.backbone.device
        )
        into = layout.pairs(found)
        grad: Tensor = self.points.norm_backward(upstream, self.last, self.backbone.norm, eps, None)
        for index in reversed(range(len(self.backbone.layers))):
            kept = self.kept.pop()
            if isinstance(kept, Tensor):
                kept = self._layer(index, kept, None)[2]
            grad = self._layer_backward(index, kept, grad, into[index])
        layout.take(found, self.adapter, gradient)

    def _layer(self, index: int, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor, _Activations]:
        """What the layer puts out, as a sum of two, for x + delta."""
        points, layer, pairs, eps = self._parts(index)
        x, read = points.add_norm(x, delta, layer.input_norm, eps, _room(pairs.get("qkv")))
        raw = widened(read, layer.qkv, layer.qkv_bias, pairs.get("qkv"))
        qkv = points.turn(raw, self.angles, self._shape, self._norms(index), eps)
        copies = self.attention.copies
        kv = qkv[:, self._queries :]
        kv = kv if copies is None else kv.index_select(0, copies.source)
        seen, weights = self.attention.forward(index, *self._heads(qkv, kv))
        delta, low = added(seen.flatten(1), layer.o, layer.o_bias, pairs.get("o"))
        middle, post = points.add_norm(x, delta, layer.post_norm, eps, _room(pairs.get("gate_up")))
        gate_up = widened(post, layer.gate_up, None, pairs.get("gate_up"))
        act = points.gate(gate_up, _room(pairs.get("down")))
        delta = widened(act, layer.down, None, pairs.get("down"))
        kept = _Activations(x, read, raw, qkv, kv, seen, weights, low, middle, post, gate_up, act)
        return middle, delta, kept

    def _layer_backward(
        self, index: int, kept: _Activations, grad: Tensor, into: dict[str, LoraPair]
    ) -> Tensor:
        """The gradient of the layer's input from that of its output."""
        points, layer, pairs, eps = self._parts(index)
        act = widened_backward(grad, kept.act, layer.down, pairs.get("down"), into.get("down"))
        gate_up = points.gate_backward(kept.gate_up, act)
        post = widened_backward(gate_up, kept.post, layer.gate_up, pairs.get("gate_up"), into.get("gate_up"))
        grad = points.norm_backward(post, kept.middle, layer.post_norm, eps, grad)
        seen = added_backward(grad, kept.seen.flatten(1), kept.low, layer.o, pairs.get("o"), into.get("o"))
        heads = self._heads(kept.qkv, kept.kv)
        pulls = self.attention.backward(index, seen.view_as(kept.seen), heads, kept.seen, kept.weights)
        norms = self._norms(index)
        qkv = points.turn_backward(
            pulls, self.angles, kept.raw, self._shape, norms, eps, self.attention.copies
        )
        read = widened_backward(qkv, kept.read, layer.qkv, pairs.get("qkv"), into.get("qkv"))
        result: Tensor = points.norm_backward(read, kept.x, layer.input_norm, eps, grad)
        return result

    def _parts(self, index: int) -> tuple[ModuleType, LlamaLayer, dict[str, LoraPair], float]:
        return self.points, self.backbone.layers[index], self.pairs[index], self.backbone.spec.eps

    @property
    def _shape(self) -> tuple[int, int, int]:
        spec = self.backbone.spec
        return spec.heads, spec.kv_heads, spec.head_dim

    @property
    def _queries(self) -> int:
        """Columns of the queries."""
        return self.backbone.spec.heads * self.backbone.spec.head_dim

    def _norms(self, index: int) -> tuple[Tensor, Tensor] | None:
        layer = self.backbone.layers[index]
        return None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)

    def _heads(self, qkv: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads, dim = self._shape
        k, v = kv.view(len(kv), 2, kv_heads, dim).unbind(1)
        return qkv[:, : self._queries].view(len(qkv), heads, dim), k, v


def widened(x: Tensor, weight: Tensor, bias: Tensor | None, pair: LoraPair | None) -> Tensor:
    """x·weightᵀ with the adapter's part. Behind the input, x has columns for x·Aᵀ, which are filled."""
    if pair is None:
        return linear(x, weight, bias)
    width = weight.shape[1]
    torch.mm(x[:, :width], pair.a.t(), out=x[:, width:])
    return linear(x, pair.beside(weight), bias)


def widened_backward(
    grad: Tensor, x: Tensor, weight: Tensor, pair: LoraPair | None, into: LoraPair | None
) -> Tensor:
    """The gradient of the input of `widened`; those of the pair are written into `into`."""
    if pair is None or into is None:
        return grad @ weight
    width = weight.shape[1]
    both = grad @ pair.beside(weight)
    whole, low = both[:, :width], both[:, width:]
    torch.mm(grad.t(), x[:, width:], out=into.b)
    torch.mm(low.t(), x[:, :width], out=into.a)
    return whole.addmm_(low, pair.a)


def added(
    x: Tensor, weight: Tensor, bias: Tensor | None, pair: LoraPair | None
) -> tuple[Tensor, Tensor | None]:
    """The same for an input without such columns, which are returned: the adapter's part is added."""
    out = linear(x, weight, bias)
    if pair is None:
        return out, None
    low = x @ pair.a.t()
    return out.addmm_(low, pair.b.t()), low


def added_backward(
    grad: Tensor, x: Tensor, low: Tensor | None, weight: Tensor, pair: LoraPair | None, into: LoraPair | None
) -> Tensor:
    out = grad @ weight
    if pair is None or into is None or low is None:
        return out
    pull = grad @ pair.b
    torch.mm(grad.t(), low, out=into.b)
    torch.mm(pull.t(), x, out=into.a)
    return out.addmm_(pull, pair.a)


def _room(pair: LoraPair | None) -> int:
    return 0 if pair is None else pair.a.shape[0]
