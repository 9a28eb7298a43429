"""The matrices of a base model in 4 or 8 bits, which are dequantised layer by layer whenever they are used.

`nf4` is the format of QLoRA: blocks of 64 weights share a scale, and each weight is the nearest of 16 levels,
quantiles of a normal distribution; 4.5 bits a weight. `int8` has one scale a row and 255 equal steps.
Embedding, LM head, norms and biases are not quantised. Sampling and training dequantise the same codes to the
same numbers, so that both compute the same function. The base model is frozen; adapters are as on any base.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import overload

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.model.llama import GROUPS, LlamaLayer
from hermes.engine.spec import Quantization

BLOCK = 64
"""Weights that share a scale in nf4."""
_TAIL = 0.9677083
"""Probability of the outermost quantile of nf4, as the authors of QLoRA chose it."""
_INT8_STEPS = 127


@dataclass(frozen=True, slots=True, eq=False)
class Nf4Matrix:
    codes: Tensor
    """[blocks * 32] uint8: two weights a byte, the first one in the upper half."""
    scales: Tensor
    """[blocks] fp32: the largest absolute value of each block."""
    shape: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Multiplied in fp32 and rounded once."""
        if self.codes.is_cuda:
            from hermes.engine.kernels.dequantize import dequantize_nf4

            return dequantize_nf4(self.codes, self.scales, nf4_levels(self.codes.device), self.shape, dtype)
        values = functional.embedding(self.codes.int(), _byte_table(self.codes.device))
        scaled = values.view(-1, BLOCK).mul_(self.scales[:, None])
        return scaled.flatten()[: self.shape[0] * self.shape[1]].view(self.shape).to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Int8Matrix:
    codes: Tensor
    """[rows, columns] int8"""
    scales: Tensor
    """[rows, 1] fp32: the size of a step."""

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Multiplied in fp32 and rounded once."""
        return torch.mul(self.codes, self.scales).to(dtype)


QuantizedMatrix = Nf4Matrix | Int8Matrix


@dataclass(frozen=True, slots=True, eq=False)
class _QuantizedLayer:
    rest: LlamaLayer
    """Norms and biases; its matrices are empty."""
    matrices: dict[str, QuantizedMatrix]


class QuantizedLayers(Sequence[LlamaLayer]):
    """The layers of a model; reading one dequantises its matrices, and keeps nothing."""

    def __init__(self, layers: Iterable[LlamaLayer], kind: Quantization) -> None:
        """Takes the layers one after another, so that only one is in memory in both forms."""
        self._layers: list[_QuantizedLayer] = []
        for layer in layers:
            matrices = {name: quantize(getattr(layer, name), kind) for name in GROUPS}
            empty = layer.qkv.new_empty(0)
            rest = replace(layer, qkv=empty, o=empty, gate_up=empty, down=empty)
            self._layers.append(_QuantizedLayer(rest, matrices))

    @property
    def nbytes(self) -> int:
        """The size of the quantised matrices."""
        return sum(matrix.nbytes for layer in self._layers for matrix in layer.matrices.values())

    def __len__(self) -> int:
        return len(self._layers)

    @overload
    def __getitem__(self, index: int) -> LlamaLayer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LlamaLayer]: ...
    def __getitem__(self, index: int | slice) -> LlamaLayer | Sequence[LlamaLayer]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        layer = self._layers[index]
        dtype = layer.rest.input_norm.dtype
        qkv, o, gate_up, down = (layer.matrices[name].dequantize(dtype) for name in GROUPS)
        return replace(layer.rest, qkv=qkv, o=o, gate_up=gate_up, down=down)


@torch.no_grad()
def quantize(matrix: Tensor, kind: Quantization) -> QuantizedMatrix:
    return _quantize_nf4(matrix) if kind == "nf4" else _quantize_int8(matrix)


def _quantize_nf4(matrix: Tensor) -> Nf4Matrix:
    rows, columns = matrix.shape
    flat = matrix.float().flatten()
    blocks = functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    levels = nf4_levels(matrix.device)
    middles = (levels[1:] + levels[:-1]) / 2
    relative = blocks / torch.where(scales == 0, 1.0, scales)[:, None]
    codes = torch.bucketize(relative, middles, out_int32=True).to(torch.uint8).flatten()
    return Nf4Matrix((codes[::2] << 4) | codes[1::2], scales, (rows, columns))


def _quantize_int8(matrix: Tensor) -> Int8Matrix:
    weights = matrix.float()
    # Not a division: by a number, a GPU multiplies with the rounded inverse and a CPU divides.
    scales = weights.abs().amax(1, keepdim=True) * (1.0 / _INT8_STEPS)
    codes = torch.round(weights / torch.where(scales == 0, 1.0, scales))
    return Int8Matrix(codes.to(torch.int8), scales)


@cache
def nf4_levels(device: torch.device) -> Tensor:
    """[16] fp32, ascending from -1 to 1: quantiles of the normal distribution, 7 below 0 and 8 above it."""
    below = torch.special.ndtri(torch.linspace(_TAIL, 0.5, 8, dtype=torch.float64)[:-1])
    above = torch.special.ndtri(torch.linspace(_TAIL, 0.5, 9, dtype=torch.float64)[:-1])
    levels = torch.cat((-below, torch.zeros(1, dtype=torch.float64), above)).sort().values
    return (levels / levels.abs().max()).float().to(device)


@cache
def _byte_table(device: torch.device) -> Tensor:
    """[256, 2]: the two levels of every byte."""
    byte, levels = torch.arange(256, device=device), nf4_levels(device)
    return torch.stack((levels[byte >> 4], levels[byte & 15]), dim=1)
