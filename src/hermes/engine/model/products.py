"""The matrix products of a forward pass: torch's own, or batch-invariant ones (`kernels.invariant`).

On a GPU sampling and training must round alike. torch's products (cuBLAS) do in most sizes; in the others,
and in all of them with `invariant`, the batch-invariant one is used.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hermes.engine.lora.adapter_table import AdapterRows
from hermes.engine.spec import Site

_FEW_ROWS, _LONG_SUM, _TILE, _MULTIPROCESSORS = 64, 2048, 128, 132
"""Where the results of cuBLAS depend on the number of rows: for few rows it has other kernels, and where its
tiles are fewer than the multiprocessors of an H200 it divides long sums among several programs."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, invariant: bool = False) -> Tensor:
    if not (invariant or _depends_on_rows(x, weight)):
        return functional.linear(x, weight, bias)
    from hermes.engine.kernels import invariant as kernel

    return kernel.linear(x, weight, bias)


def wide_linear(x: Tensor, weight: Tensor, *, invariant: bool = False) -> Tensor:
    """x · weightᵀ in fp32 on a GPU, else in the dtype of x.

    Logits need it: near 27 two bf16 numbers are 0.125 apart, so rounded logits would move a logprob by more
    than everything before them.
    """
    if invariant or _depends_on_rows(x, weight):
        from hermes.engine.kernels import invariant as kernel

        return kernel.linear(x, weight, dtype=torch.float32)
    if x.is_cuda and x.dtype != torch.float32:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return functional.linear(x, weight)


def _depends_on_rows(x: Tensor, weight: Tensor) -> bool:
    """Whether a decode step would round otherwise than a training pass if both used cuBLAS."""
    if not x.is_cuda or x.dtype == torch.float32:
        return False
    (rows, inputs), outputs = x.shape, weight.shape[0]
    tiles = -(-rows // _TILE) * -(-outputs // _TILE)
    return rows < _FEW_ROWS or (inputs > _LONG_SUM and tiles < _MULTIPROCESSORS)


def lora_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    lora: AdapterRows,
    site: Site,
    outputs: tuple[int, ...],
    *,
    invariant: bool = False,
    wide: bool = False,
) -> Tensor:
    """The stacked linears of a group with each row's adapter, on a GPU; with `wide`, the result is in fp32.

    Base product and delta are summed in fp32 and rounded once, so a delta that is smaller than the rounding
    of the base product is not lost. Without a delta the result has the bits of `linear` or `wide_linear`.
    """
    from hermes.engine.kernels import lora as kernel

    entries = lora.table.entries[:, lora.table.sites[site]]
    with lora.beside():
        down = kernel.shrink(x, entries, lora.tiles, lora.tile_rows, len(outputs) * lora.table.rank)
    total = wide_linear(x, weight, invariant=invariant)
    lora.join()
    return kernel.expand(
        total,
        down,
        bias,
        entries,
        lora.tiles,
        lora.tile_rows,
        outputs,
        out=total if wide else torch.empty_like(total, dtype=x.dtype),
        dtype=x.dtype,
    )
