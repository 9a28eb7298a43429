"""Small-batch products on a CPU: weights laid out beforehand the way its instructions want them.

A plain product re-orders the weights at every call, which at decode sizes costs as much as the product; laid
out once, decoding is about 1.5 times as fast, at the price of a second copy of the weights. What is left is
reading them, and a thousand small operations: so norms and rotations are written with few. Results are those
of the plain form up to rounding. Only for sampling: a packed weight has no gradient.

Intel's processors and ARM's have such layouts. On ARM a single row alone is faster with the weights as they
were, and where no adapter is merged in they are at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.attention.base import Attend
from hermes.engine.lora.weights import LoraView, LoraWeights
from hermes.engine.memory import free_bytes
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.llama import LlamaBackbone, LlamaLayer, merge_head, merge_layer
from hermes.engine.spec import Site

_ROWS = 16
"""The number of rows the layout is made for; others do as well."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedLayer:
    """A layer's matrices, laid out anew."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedBackbone(LlamaBackbone):
    """Computes with the packed matrices; the plain ones are those of the model without any adapter."""

    packed: tuple[PackedLayer, ...]
    packed_head: Tensor
    one_row_is_plain: bool
    """A single row is computed with the plain matrices."""
    floor: Tensor
    """[] fp32: what a norm adds to the mean square."""

    def merged(self, weights: LoraWeights) -> PackedBackbone:
        """The model with this adapter, whatever this one has; a matrix at a time lies in memory twice."""
        layers = (merge_layer(self, index, weights) for index in range(len(self.layers)))
        packed = tuple(_pack_layer(layer) for layer in layers)
        head = _pack(merge_head(self, weights))
        return replace(self, packed=packed, packed_head=head, one_row_is_plain=False)

    def matrices(self, index: int, rows: int) -> PackedLayer | LlamaLayer:
        return self.layers[index] if self.one_row_is_plain and rows == 1 else self.packed[index]

    def head_matrix(self, rows: int) -> Tensor:
        return self.head_weight if self.one_row_is_plain and rows == 1 else self.packed_head

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, 1, head_dim], as `_turned` wants them."""
        cos, sin = LlamaBackbone.rotary(self, positions)
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)

    def layer(
        self, index: int, x: Tensor, turn: tuple[Tensor, Tensor], attend: Attend, lora: LoraView | None
    ) -> Tensor:
        weights, matrices = self.layers[index], self.matrices(index, len(x))
        q, k, v = self._heads(index, self._normed(x, weights.input_norm), turn, lora)
        seen = attend(index, q, k, v).reshape(x.shape[0], -1)
        x = _add(x, seen, matrices.o, weights.o_bias, lora, (index, "o"))
        read = self._normed(x, weights.post_norm)
        gate, up = product(read, matrices.gate_up).chunk(2, dim=-1)
        if lora is not None:
            gate, up = lora.apply((index, "gate_up"), read, (gate, up))
        return _add(x, functional.silu(gate).mul_(up), matrices.down, None, lora, (index, "down"))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        """As `rms_norm`, in two thirds of its time."""
        wide = x.float()
        size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self.floor, size, size, value=1 / x.shape[-1]).rsqrt_()
        return torch.mul(wide, scale).to(x.dtype).mul_(weight)

    def _heads(
        self, index: int, x: Tensor, turn: tuple[Tensor, Tensor], lora: LoraView | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As the plain form's, but queries and keys are turned together where they lie together."""
        weights, spec = self.layers[index], self.spec
        out = product(x, self.matrices(index, len(x)).qkv, weights.qkv_bias)
        if lora is None and weights.q_norm is None:
            heads = out.view(len(x), -1, spec.head_dim)
            turned = _turned(heads[:, : -spec.kv_heads], turn)
            return turned[:, : spec.heads], turned[:, spec.heads :], heads[:, -spec.kv_heads :]
        kv = spec.kv_heads * spec.head_dim
        outs = torch.split(out, [spec.heads * spec.head_dim, kv, kv], dim=-1)
        if lora is not None:
            outs = lora.apply((index, "qkv"), x, outs)
        q, k, v = (one.reshape(len(x), -1, spec.head_dim) for one in outs)
        if weights.q_norm is not None and weights.k_norm is not None:
            q, k = self._normed(q, weights.q_norm), self._normed(k, weights.k_norm)
        return _turned(q, turn), _turned(k, turn), v


def pack(backbone: Backbone) -> Backbone:
    """The packed form where there is one, it pays and its second copy fits; else the backbone as it is."""
    if not (
        isinstance(backbone, LlamaBackbone)
        and not isinstance(backbone, PackedBackbone)
        and backbone.device.type == "cpu"
        and has_layout(backbone.dtype)
        and 2 * _size_bytes(backbone) < free_bytes(backbone.device)
    ):
        return backbone
    same = {field.name: getattr(backbone, field.name) for field in fields(LlamaBackbone)}
    return PackedBackbone(
        **same,
        packed=tuple(_pack_layer(layer) for layer in backbone.layers),
        packed_head=_pack(backbone.head_weight),
        one_row_is_plain=_is_arm(),
        floor=torch.tensor(backbone.spec.eps),
    )


def has_layout(dtype: torch.dtype) -> bool:
    """Whether this CPU has one of its own for matrices of this dtype."""
    if dtype == torch.bfloat16:
        return has_bf16()
    if dtype != torch.float32 or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") or _is_arm()


def has_bf16() -> bool:
    """Whether this CPU has instructions for bf16; without them a product takes a hundred times as long."""
    known: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return known and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _is_arm() -> bool:
    """With the library whose layouts these are."""
    return bool(torch.backends.mkldnn.is_acl_available())  # type: ignore[no-untyped-call]


def head_product(backbone: Backbone, hidden: Tensor) -> Tensor:
    """Logits [rows, vocab] in the backbone's dtype."""
    if isinstance(backbone, PackedBackbone):
        return product(hidden, backbone.head_matrix(len(hidden)))
    return functional.linear(hidden, backbone.head_weight)


def product(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """x times the matrix, packed or plain."""
    if not matrix.is_mkldnn:
        return functional.linear(x, matrix, bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, matrix, bias, "none", [], "")
    return out


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """As `rotate`: the halves change places, and the sine has the sign of each."""
    cos, sin = turn
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _add(
    x: Tensor, read: Tensor, matrix: Tensor, bias: Tensor | None, lora: LoraView | None, group: Site
) -> Tensor:
    """x plus the product, with an adapter's share if there is one."""
    if lora is None and matrix.is_mkldnn:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(read, x, matrix, bias, "add")
        return out
    added = product(read, matrix, bias)
    return x + (added if lora is None else lora.apply(group, read, (added,))[0])


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return packed


def _pack_layer(layer: LlamaLayer) -> PackedLayer:
    return PackedLayer(*(_pack(one) for one in (layer.qkv, layer.o, layer.gate_up, layer.down)))


def _size_bytes(backbone: LlamaBackbone) -> int:
    linears = sum(one.inputs * one.outputs for one in backbone.spec.linears.values())
    return linears * backbone.dtype.itemsize
