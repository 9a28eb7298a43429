"""Memory for keys and values: one flat pool with an index per token, allocated in contiguous slots.

A sequence gets one slot for its prompt and everything it may still sample, before it starts, so a running
sequence never runs out of memory and is never preempted. Slots come in few sizes and are taken from the
lowest free index, so that sequences of one size are adjacent at one stride: a CPU then attends over many of
them in one call, on a view. A kernel needs only a slot's first index and the sequence's length.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hermes.engine.spec import ModelSpec

_SMALLEST_SLOT = 64
_ALIGNMENT_BYTES = 64
"""The size of a CPU cache line, and of the widest vector register."""


@dataclass(frozen=True, slots=True)
class KvSlot:
    start: int
    """Index of its first token in the pool."""
    size: int


def slot_size(tokens: int) -> int:
    """The smallest slot size that holds `tokens`: 64, 96, 128, 192, 256, 384, …"""
    size = _SMALLEST_SLOT
    while size < tokens:
        if size + size // 2 >= tokens:
            return size + size // 2
        size *= 2
    return size


class SlotCopy(NamedTuple):
    """Keys and values that are copied from one index of the pool to another."""

    source: int
    target: int
    tokens: int

    def depends_on(self, earlier: SlotCopy) -> bool:
        """Whether it must come after the other one: one of them writes what the other reads or writes."""
        return (
            self._overlaps(self.source, earlier.target, earlier)
            or self._overlaps(self.target, earlier.target, earlier)
            or self._overlaps(self.target, earlier.source, earlier)
        )

    def _overlaps(self, start: int, other_start: int, other: SlotCopy) -> bool:
        return start < other_start + other.tokens and other_start < start + self.tokens


class SlotAllocator:
    """Allocates ranges of the pool. First fit from the lowest index; adjacent free ranges are merged."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.used = 0
        self._starts = [0] if tokens else []
        self._sizes = {0: tokens} if tokens else {}

    def allocate(self, size: int) -> KvSlot | None:
        """A slot for `size` tokens, or None while no free range is large enough."""
        for index, start in enumerate(self._starts):
            free = self._sizes[start]
            if free < size:
                continue
            del self._starts[index], self._sizes[start]
            if free > size:
                self._starts.insert(index, start + size)
                self._sizes[start + size] = free - size
            self.used += size
            return KvSlot(start, size)
        return None

    def free(self, slot: KvSlot) -> None:
        start, size = slot.start, slot.size
        self.used -= size
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start + size:
            size += self._sizes.pop(self._starts.pop(index))
        if index and self._starts[index - 1] + self._sizes[self._starts[index - 1]] == start:
            self._sizes[self._starts[index - 1]] += size
            return
        insort(self._starts, start)
        self._sizes[start] = size


class KvPool:
    """Keys and values of every layer, [layers, tokens, kv_heads, head_dim] each.

    On a CPU, slots are read up to the length of the longest sequence and masked positions get weight 0. Since
    0 times NaN is NaN, the pool starts as zeros, and the slot of a sequence that failed is zeroed.
    """

    def __init__(self, spec: ModelSpec, tokens: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (spec.layers, tokens, spec.kv_heads, spec.head_dim)
        self.keys, self.values = _zeros(shape, device, dtype), _zeros(shape, device, dtype)

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """Copies the first `tokens` of the slot at `source` to the slots at `targets`."""
        for pool in (self.keys, self.values):
            prefix = pool[:, source : source + tokens]
            for target in targets:
                pool[:, target : target + tokens].copy_(prefix)

    def zero(self, slot: KvSlot) -> None:
        for pool in (self.keys, self.values):
            pool[:, slot.start : slot.start + slot.size].zero_()

    def write(self, layer: int, indices: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores keys and values [T, kv_heads, head_dim] at the indices [T]."""
        self.keys[layer].index_copy_(0, indices, keys)
        self.values[layer].index_copy_(0, indices, values)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros; on a CPU these are untouched pages, which use no memory until they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    pages = torch.from_numpy(np.zeros(size + _ALIGNMENT_BYTES, np.uint8))
    start = -pages.data_ptr() % _ALIGNMENT_BYTES
    return pages[start : start + size].view(dtype).view(shape)


def kv_bytes_per_token(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Size of one token's keys and values in all layers."""
    return 2 * spec.layers * spec.kv_heads * spec.head_dim * dtype.itemsize
