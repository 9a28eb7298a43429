"""Prepacked weights for small-batch matrix products on a CPU, in the layout of its oneDNN kernels.

A plain product reorders the weights at every call, which at decode sizes costs as much as the product.
Reordered once, decoding is about 1.5 times as fast, at the price of a second copy of the weights. The rest of
the time is spent reading them, and on a thousand small operations, so norms and rotations use few of them.
Results equal those of the plain form up to rounding. Only for sampling: a packed weight has no gradient.

Intel and ARM processors have such layouts. On ARM a single row is faster with the plain weights, which are
available if no adapter is merged in.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.attention.base import Attend
from hermes.engine.lora.weights import LoraView, LoraWeights
from hermes.engine.memory import free_bytes
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone, LlamaLayer, merge_head, merge_layer
from hermes.engine.model.products import wide_linear
from hermes.engine.spec import Site

_LAYOUT_ROWS = 16
"""The number of rows the layout is optimised for; it works for any number."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedLayer:
    """A layer's prepacked matrices."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedBackbone(LlamaBackbone):
    """Computes with prepacked matrices, which may have an adapter merged in; the plain ones never have."""

    packed: tuple[PackedLayer, ...]
    packed_head: Tensor
    plain_single_row: bool
    """A single row is computed with the plain matrices."""
    eps: Tensor
    """[] fp32: what a norm adds to the mean square."""

    def matrices(self, index: int, rows: int) -> PackedLayer | LlamaLayer:
        return self.layers[index] if self.plain_single_row and rows == 1 else self.packed[index]

    def head_matrix(self, rows: int) -> Tensor:
        return self.head_weight if self.plain_single_row and rows == 1 else self.packed_head

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, 1, head_dim], in the form that `_rotate` takes."""
        cos, sin = LlamaBackbone.rotary(self, positions)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def layer(
        self, index: int, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend, lora: LoraView | None
    ) -> Tensor:
        weights, matrices = self.layers[index], self.matrices(index, len(x))
        q, k, v = self._heads(index, self._rms_norm(x, weights.input_norm), rope, lora)
        attn_out = attend(index, q, k, v).reshape(x.shape[0], -1)
        x = _add_linear(x, attn_out, matrices.o, weights.o_bias, lora, (index, "o"))
        normed = self._rms_norm(x, weights.post_norm)
        gate, up = packed_linear(normed, matrices.gate_up).chunk(2, dim=-1)
        if lora is not None:
            gate, up = lora.apply((index, "gate_up"), normed, (gate, up))
        return _add_linear(x, functional.silu(gate).mul_(up), matrices.down, None, lora, (index, "down"))

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """The same as `rms_norm`, in two thirds of its time."""
        x_fp32 = x.float()
        size = torch.linalg.vector_norm(x_fp32, dim=-1, keepdim=True)
        scale = torch.addcmul(self.eps, size, size, value=1 / x.shape[-1]).rsqrt_()
        return torch.mul(x_fp32, scale).to(x.dtype).mul_(weight)

    def _heads(
        self, index: int, x: Tensor, rope: tuple[Tensor, Tensor], lora: LoraView | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [T, heads, D]; the first two are rotated together if possible."""
        weights, spec = self.layers[index], self.spec
        out = packed_linear(x, self.matrices(index, len(x)).qkv, weights.qkv_bias)
        if lora is None and weights.q_norm is None:
            heads = out.view(len(x), -1, spec.head_dim)
            rotated = _rotate(heads[:, : -spec.kv_heads], rope)
            return rotated[:, : spec.heads], rotated[:, spec.heads :], heads[:, -spec.kv_heads :]
        kv = spec.kv_heads * spec.head_dim
        outs = torch.split(out, [spec.heads * spec.head_dim, kv, kv], dim=-1)
        if lora is not None:
            outs = lora.apply((index, "qkv"), x, outs)
        q, k, v = (out.reshape(len(x), -1, spec.head_dim) for out in outs)
        if weights.q_norm is not None and weights.k_norm is not None:
            q, k = self._rms_norm(q, weights.q_norm), self._rms_norm(k, weights.k_norm)
        return _rotate(q, rope), _rotate(k, rope), v


def prepack(backbone: Backbone, adapter: LoraWeights | None = None) -> Backbone:
    """The backbone with prepacked weights, if the CPU has a layout and they fit; else not packed.

    With the adapter merged in, if there is one; one matrix at a time is in memory twice.
    """
    if not (
        isinstance(backbone, LlamaBackbone)
        and not isinstance(backbone, PackedBackbone)
        and not backbone.is_quantized
        and backbone.device.type == "cpu"
        and has_layout(backbone.dtype)
        and 2 * _size_bytes(backbone) < free_bytes(backbone.device)
    ):
        return backbone if adapter is None else backbone.merged(adapter)
    plain = {field.name: getattr(backbone, field.name) for field in fields(LlamaBackbone)}
    layers = (
        layer if adapter is None else merge_layer(backbone, index, adapter)
        for index, layer in enumerate(backbone.layers)
    )
    return PackedBackbone(
        **plain,
        packed=tuple(map(_reorder_layer, layers)),
        packed_head=_reorder(backbone.head_weight if adapter is None else merge_head(backbone, adapter)),
        plain_single_row=adapter is None and _is_arm(),
        eps=torch.tensor(backbone.spec.eps),
    )


def has_layout(dtype: torch.dtype) -> bool:
    """Whether this CPU has a prepacked layout for matrices of this dtype."""
    if dtype == torch.bfloat16:
        return has_bf16()
    if dtype != torch.float32 or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") or _is_arm()


def has_bf16() -> bool:
    """Whether this CPU has instructions for bf16; without them a product takes a hundred times as long."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _is_arm() -> bool:
    """Whether torch has the ARM Compute Library, whose layouts these are."""
    return bool(torch.backends.mkldnn.is_acl_available())  # type: ignore[no-untyped-call]


def lm_head_linear(backbone: Backbone, hidden: Tensor) -> Tensor:
    """Logits [rows, vocab], in the backbone's dtype on a CPU."""
    if isinstance(backbone, PackedBackbone):
        return packed_linear(hidden, backbone.head_matrix(len(hidden)))
    return wide_linear(hidden, backbone.head_weight)


def packed_linear(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """The linear layer of a matrix, prepacked or plain."""
    if not matrix.is_mkldnn:
        return functional.linear(x, matrix, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, matrix, bias, "none", [], "")
    return out


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """The same as `rotate`: the halves are swapped, and the sines have the sign of each half."""
    cos, sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _add_linear(
    residual: Tensor, x: Tensor, matrix: Tensor, bias: Tensor | None, lora: LoraView | None, group: Site
) -> Tensor:
    """The residual plus the linear layer of x, with the LoRA delta if there is one."""
    if lora is None and matrix.is_mkldnn:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, matrix, bias, "add")
        return out
    added = packed_linear(x, matrix, bias)
    return residual + (added if lora is None else lora.apply(group, x, (added,))[0])


def _reorder(weight: Tensor) -> Tensor:
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _LAYOUT_ROWS)
    return reordered


def _reorder_layer(layer: LlamaLayer) -> PackedLayer:
    return PackedLayer(*(_reorder(matrix) for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down)))


def _size_bytes(backbone: LlamaBackbone) -> int:
    linears = sum(linear.inputs * linear.outputs for linear in backbone.spec.linears.values())
    return linears * backbone.dtype.itemsize
