"""Memory for keys and values: one flat pool of cells, a cell per token, handed out in contiguous slots.

A sequence gets one slot for its prompt and everything it may still sample, before it starts, so a running
sequence never runs out and is never put aside. Slots come in few sizes and from the lowest free cell, so that
sequences alike lie side by side at one stride: a CPU then attends over many of them in one call, on a view. A
kernel needs only a slot's first cell and the sequence's length.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hermes.engine.spec import ModelSpec

_SMALLEST = 64
_ALIGNED = 64
"""Bytes: a line of the cache, and a register of the widest kind."""


@dataclass(frozen=True, slots=True)
class KvSlot:
    start: int
    """Its first cell."""
    size: int


def slot_size(tokens: int) -> int:
    """The slot size that holds so many tokens: 64, 96, 128, 192, 256, 384, …"""
    size = _SMALLEST
    while size < tokens:
        if size + size // 2 >= tokens:
            return size + size // 2
        size *= 2
    return size


class SlotAllocator:
    """Which cells are free. First fit from the lowest; neighbours that are free become one."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.used = 0
        self._starts = [0] if count else []
        self._sizes = {0: count} if count else {}

    def take(self, size: int) -> KvSlot | None:
        """A slot of `size` cells, or None while there is no room for it."""
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

    def give_back(self, slot: KvSlot) -> None:
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
    """Keys and values of every layer, [layers, cells, kv_heads, head_dim] each.

    A CPU reads slots to the end of the longest and weighs what is not to be seen by 0, and 0 times NaN is
    NaN: so cells begin as zeros, and those of a sequence that did not come to a good end are wiped.
    """

    def __init__(self, spec: ModelSpec, cells: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (spec.layers, cells, spec.kv_heads, spec.head_dim)
        self.keys, self.values = _zeros(shape, device, dtype), _zeros(shape, device, dtype)

    def copy(self, source: int, targets: list[int], tokens: int) -> None:
        """The first `tokens` of the slot at cell `source` into the slots at `targets`."""
        for pool in (self.keys, self.values):
            have = pool[:, source : source + tokens]
            for target in targets:
                pool[:, target : target + tokens].copy_(have)

    def wipe(self, slot: KvSlot) -> None:
        for pool in (self.keys, self.values):
            pool[:, slot.start : slot.start + slot.size].zero_()

    def write(self, layer: int, cells: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keys and values [T, kv_heads, head_dim] into the cells [T]."""
        self.keys[layer].index_copy_(0, cells, keys)
        self.values[layer].index_copy_(0, cells, values)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros; on a CPU fresh pages of the system's, which take no memory before they are written to."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    fresh = torch.from_numpy(np.zeros(size + _ALIGNED, np.uint8))
    start = -fresh.data_ptr() % _ALIGNED
    return fresh[start : start + size].view(dtype).view(shape)


def cell_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """What one token takes."""
    return 2 * spec.layers * spec.kv_heads * spec.head_dim * dtype.itemsize
