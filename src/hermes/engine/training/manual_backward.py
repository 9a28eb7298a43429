"""The training pass of a Llama backbone with a manual backward pass, without autograd.

Forward and backward consist of the matrix products and one function for the operations between two of them
(`layer_plain`, `kernels.layer`), so that a layer costs the host few calls. The frozen weights have no
gradient; those of the adapter's matrices are written in the layout of `layer_weights`. Equal to
`LlamaBackbone.hidden` under autograd (tests compare both with naive gradients).

On a GPU the products of the forward pass are those of the sampler, adapter included, so both compute the same
function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import embedding

from hermes.engine.attention.packed import PackedAttention
from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.adapter_table import AdapterRows
from hermes.engine.model import products
from hermes.engine.model.llama import LlamaBackbone, LlamaLayer
from hermes.engine.training.layer_weights import LayerLayout, LoraPair, adapter_layout


@dataclass(slots=True, eq=False)
class _Activations:
    """The tensors of a layer's forward pass that its backward pass needs."""

    x: Tensor
    normed: Tensor
    """The norm of x."""
    raw_qkv: Tensor
    """Queries, keys and values before the rotation, which overwrites them if there are no head norms."""
    qkv: Tensor
    kv: Tensor
    """Keys and values as attended to: those of shared rows are repeated."""
    attn_out: Tensor
    attn_saved: tuple[Tensor, ...]
    """The tensors that the attention's backward pass needs."""
    residual: Tensor
    """x after attention."""
    post_normed: Tensor
    """The norm of `residual`."""
    gate_up: Tensor
    act: Tensor


@dataclass(slots=True, eq=False)
class LayerStack:
    """One pass over one pack: `forward`, then `backward` at most once."""

    backbone: LlamaBackbone
    adapter: Adapter
    attention: PackedAttention
    ops: ModuleType
    """`layer_plain` or `kernels.layer`."""
    lora: AdapterRows | None = None
    """The adapter as the kernels of a GPU read it; None elsewhere."""
    layout: LayerLayout | None = None
    pairs: list[dict[str, LoraPair]] = field(default_factory=list)
    rope: tuple[Tensor, Tensor] | None = None
    """Cosines and sines [T, head_dim / 2]."""
    activations: list[_Activations | Tensor] = field(default_factory=list)
    """Per layer; only its input if the layer is recomputed."""
    final: Tensor | None = None
    """The input of the final norm."""

    @torch.no_grad()
    def forward(self, tokens: Tensor, positions: Tensor, *, keep: bool, checkpoint: bool = False) -> Tensor:
        """Final hidden states [T, hidden]; with `keep`, activations are saved for `backward`."""
        backbone = self.backbone
        self.layout = adapter_layout(self.adapter)
        if self.layout is None:
            self.pairs = [{} for _ in backbone.layers]
        else:
            self.pairs = self.layout.pairs(self.layout.fill(self.adapter, backbone.dtype))
        cos, sin = backbone.rotary(positions)
        self.rope = cos[:, 0].contiguous(), sin[:, 0].contiguous()
        x, delta = embedding(tokens, backbone.embed), None
        for index in range(len(backbone.layers)):
            x, delta, activations = self._layer(index, x, delta)
            if keep and self.layout is not None:
                self.activations.append(activations.x if checkpoint else activations)
        states: Tensor
        self.final, states = self.ops.add_norm(x, delta, backbone.norm, backbone.spec.eps)
        return states

    @torch.no_grad()
    def backward(self, upstream: Tensor, gradient: Tensor) -> None:
        """Adds to the adapter's flat gradient, given the gradient of the hidden states."""
        if self.layout is None or self.final is None:
            return
        layout, eps = self.layout, self.backbone.spec.eps
        lora_grads = torch.zeros(
            layout.layers, layout.width, dtype=self.backbone.dtype, device=self.backbone.device
        )
        pair_grads = layout.pairs(lora_grads)
        grad: Tensor = self.ops.norm_backward(upstream, self.final, self.backbone.norm, eps, None)
        for index in reversed(range(len(self.backbone.layers))):
            saved = self.activations.pop()
            if isinstance(saved, Tensor):
                saved = self._layer(index, saved, None)[2]
            grad = self._layer_backward(index, saved, grad, pair_grads[index])
        layout.add_gradients(lora_grads, self.adapter, gradient)

    def _layer(self, index: int, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor, _Activations]:
        """The output for the input x + delta, also as a sum of two; and the activations."""
        ops, layer, eps = self.ops, self.backbone.layers[index], self.backbone.spec.eps
        linear = partial(self._linear, index)
        x, normed = ops.add_norm(x, delta, layer.input_norm, eps)
        raw_qkv = linear("qkv", normed, layer.qkv, layer.qkv_bias)
        qkv = ops.apply_rope(raw_qkv, self.rope, self._shape, _norms(layer), eps)
        copies = self.attention.copies
        kv = qkv[:, self._queries :]
        kv = kv if copies is None else kv.index_select(0, copies.source)
        attn_out, attn_saved = self.attention.forward(index, *self._heads(qkv, kv))
        delta = linear("o", attn_out.flatten(1), layer.o, layer.o_bias)
        residual, post_normed = ops.add_norm(x, delta, layer.post_norm, eps)
        gate_up = linear("gate_up", post_normed, layer.gate_up)
        act = ops.silu_and_mul(gate_up)
        delta = linear("down", act, layer.down)
        activations = _Activations(
            x=x,
            normed=normed,
            raw_qkv=raw_qkv,
            qkv=qkv,
            kv=kv,
            attn_out=attn_out,
            attn_saved=attn_saved,
            residual=residual,
            post_normed=post_normed,
            gate_up=gate_up,
            act=act,
        )
        return residual, delta, activations

    def _linear(self, index: int, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A linear of the layer with its adapter."""
        pair, site, invariant = self.pairs[index].get(name), (index, name), self.backbone.batch_invariant
        if pair is None:
            return products.linear(x, weight, bias, invariant=invariant)
        if self.lora is None:
            return products.linear(x, weight, bias).addmm_(x @ pair.a.t(), pair.b.t())
        outputs = self.backbone.outputs(site)
        return products.lora_linear(x, weight, bias, self.lora, site, outputs, invariant=invariant)

    def _layer_backward(
        self, index: int, saved: _Activations, grad: Tensor, pair_grads: dict[str, LoraPair]
    ) -> Tensor:
        """The gradient of the layer's input from that of its output."""
        ops, layer, eps = self.ops, self.backbone.layers[index], self.backbone.spec.eps

        def group_backward(name: str, upstream: Tensor, x: Tensor) -> Tensor:
            pair = self.pairs[index].get(name)
            return linear_backward(upstream, x, getattr(layer, name), pair, pair_grads.get(name))

        act = group_backward("down", grad, saved.act)
        gate_up = ops.silu_and_mul_backward(saved.gate_up, act)
        post_normed = group_backward("gate_up", gate_up, saved.post_normed)
        grad = ops.norm_backward(post_normed, saved.residual, layer.post_norm, eps, grad)
        attn_out = group_backward("o", grad, saved.attn_out.flatten(1))
        heads = self._heads(saved.qkv, saved.kv)
        head_grads = self.attention.backward(
            index, attn_out.view_as(saved.attn_out), heads, saved.attn_out, saved.attn_saved
        )
        norms, copies = _norms(layer), self.attention.copies
        qkv = ops.apply_rope_backward(head_grads, self.rope, saved.raw_qkv, self._shape, norms, eps, copies)
        normed = group_backward("qkv", qkv, saved.normed)
        result: Tensor = ops.norm_backward(normed, saved.x, layer.input_norm, eps, grad)
        return result

    @property
    def _shape(self) -> tuple[int, int, int]:
        spec = self.backbone.spec
        return spec.heads, spec.kv_heads, spec.head_dim

    @property
    def _queries(self) -> int:
        """The number of columns of the queries."""
        return self.backbone.spec.heads * self.backbone.spec.head_dim

    def _heads(self, qkv: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads, dim = self._shape
        k, v = kv.view(len(kv), 2, kv_heads, dim).unbind(1)
        return qkv[:, : self._queries].view(len(qkv), heads, dim), k, v


def _norms(layer: LlamaLayer) -> tuple[Tensor, Tensor] | None:
    return None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)


def linear_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    pair: LoraPair | None,
    pair_grad: LoraPair | None,
) -> Tensor:
    """The gradient of x in x·(weight + B·A)ᵀ; `pair_grad` gets those of A and B."""
    if pair is None or pair_grad is None:
        return grad @ weight
    torch.mm(grad.t(), x @ pair.a.t(), out=pair_grad.b)
    down_grad = grad @ pair.b
    torch.mm(down_grad.t(), x, out=pair_grad.a)
    return (grad @ weight).addmm_(down_grad, pair.a)
