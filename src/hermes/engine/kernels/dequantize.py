"""The Triton kernel that dequantises a matrix of 4-bit codes in one pass over its memory.

The same numbers as `model.quantized` computes on a CPU: a product in fp32, rounded once. Imported only where
there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BYTES_PER_PROGRAM = 1024


@triton.jit
def _dequantize_nf4(codes, scales, levels, out, size, BYTES: tl.constexpr, BLOCK_BYTES: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    present = 2 * index < size
    byte = tl.load(codes + index, mask=present, other=0).to(tl.int32)
    scale = tl.load(scales + index // BLOCK_BYTES, mask=present, other=0.0)
    first = tl.load(levels + (byte >> 4)) * scale
    second = tl.load(levels + (byte & 15)) * scale
    values = tl.interleave(first, second).to(out.dtype.element_ty)
    position = tl.program_id(0).to(tl.int64) * (2 * BYTES) + tl.arange(0, 2 * BYTES)
    tl.store(out + position, values, mask=position < size)


def dequantize_nf4(
    codes: Tensor, scales: Tensor, levels: Tensor, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """[rows, columns] of packed codes [bytes], scales [blocks] and the 16 levels."""
    out = torch.empty(shape, dtype=dtype, device=codes.device)
    block_bytes = len(codes) // len(scales)
    programs = triton.cdiv(len(codes), _BYTES_PER_PROGRAM)
    _dequantize_nf4[(programs,)](
        codes, scales, levels, out, out.numel(), _BYTES_PER_PROGRAM, block_bytes, num_warps=4
    )
    return out
