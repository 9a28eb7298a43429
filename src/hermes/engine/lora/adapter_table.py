"""Where the matrices of adapters lie on a device, and which adapter each row of a pass has.

The kernels of a GPU (`kernels.lora`) read an adapter's matrices by their addresses, so a pass over rows of
many adapters is the same work as over those of one, and can be captured. Nothing is copied: a table holds
addresses, and keeps the tensors behind them alive.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hermes.engine.lora.weights import LoraGroup, LoraWeights, Policy
from hermes.engine.spec import ModelSpec, Site
from hermes.engine.types import Ints

MAX_MEMBERS = 3
"""Linears of one group: query, key and value."""
MEMBER_FIELDS = 4
"""A linear has four: the address of B, its first row in the stacked A, its rank, the bits of its scale."""
FIELDS = 2 + MAX_MEMBERS * MEMBER_FIELDS
"""A group has these: the address of the stacked A, its number of rows, and the fields of each linear."""

DECODE_TILE_ROWS, TILE_ROWS = 16, 32
"""Rows of one adapter that a kernel computes together. Results do not depend on it: small tiles waste less on
adapters with few rows, large ones read the matrices less often."""


class AdapterTable:
    """The addresses of adapters' matrices by slot; an empty slot is the base model."""

    def __init__(self, sites: Iterable[Site], device: torch.device, slots: int = 1) -> None:
        self.sites = {site: number for number, site in enumerate(sites)}
        self.entries = torch.zeros(slots, len(self.sites), FIELDS, dtype=torch.int64, device=device)
        self.rank = 0
        """The highest rank that a slot has had."""
        self._weights: dict[int, LoraWeights] = {}
        """Keeps the tensors of each slot alive."""

    def write(self, slot: int, weights: LoraWeights) -> None:
        """`weights`: on the table's device, aligned (`LoraWeights.aligned`)."""
        entries = [_entry(weights.groups.get(site)) for site in self.sites]
        self.entries[slot].copy_(torch.tensor(entries, dtype=torch.int64))
        self._weights[slot] = weights
        self.rank = max(self.rank, weights.rank)

    def clear(self, slot: int) -> None:
        self.entries[slot].zero_()
        self._weights.pop(slot, None)


@dataclass(frozen=True, slots=True, eq=False)
class AdapterRows:
    """The slot of each row of a pass."""

    table: AdapterTable
    tiles: Tensor
    """[tiles, 3] int32: first row, end and slot; a tile without rows is skipped."""
    tile_rows: int
    side: torch.cuda.Stream | None = None
    """A stream for what can be computed beside the base product: the small kernels of a decode step fill only
    a part of the device."""

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Kernels that are launched within run beside what is launched afterwards, until `join`."""
        if self.side is None:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield

    def join(self) -> None:
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)

    @classmethod
    def for_spans(cls, table: AdapterTable, spans: Sequence[tuple[int, int]]) -> AdapterRows:
        """`spans`: (slot, number of rows), one after another."""
        tiles = row_tiles(spans, TILE_ROWS)
        return cls(table, torch.from_numpy(tiles).to(table.entries.device), TILE_ROWS)


def row_tiles(spans: Sequence[tuple[int, int]], tile_rows: int) -> Ints:
    """The rows of (slot, number of rows) pairs in tiles of one slot each: first row, end, slot."""
    tiles, start = [], 0
    for slot, rows in spans:
        firsts = np.arange(start, start + rows, tile_rows)
        ends = np.minimum(firsts + tile_rows, start + rows)
        tiles.append(np.stack((firsts, ends, np.full_like(firsts, slot)), axis=1))
        start += rows
    return np.concatenate(tiles).astype(np.int32)


class PolicySlots:
    """The slots of policies in a table. The base model has slot 0; the least recently used makes room."""

    def __init__(self, spec: ModelSpec, device: torch.device, slots: int) -> None:
        self.table = AdapterTable(spec.groups, device, slots + 1)
        self._slots: OrderedDict[Policy, int] = OrderedDict()
        """Least recently used first."""
        self._free = list(range(slots, 0, -1))

    def slot(self, policy: Policy, running: Collection[Policy]) -> int:
        """The policy's slot, which never is that of a `running` policy."""
        if policy.applied is None:
            return 0
        if policy not in self._slots:
            if not self._free:
                self.drop(next(resident for resident in self._slots if resident not in running))
            slot = self._free.pop()
            self.table.write(slot, policy.applied)
            self._slots[policy] = slot
        self._slots.move_to_end(policy)
        return self._slots[policy]

    def drop(self, policy: Policy) -> None:
        slot = self._slots.pop(policy, None)
        if slot is not None:
            self.table.clear(slot)
            self._free.append(slot)


def _entry(group: LoraGroup | None) -> list[int]:
    if group is None:
        return [0] * FIELDS
    fields = [group.a.data_ptr(), group.a.shape[0]]
    for rows, part in group.spans():
        fields += (
            [0] * MEMBER_FIELDS
            if part is None
            else [part.b.data_ptr(), rows.start, part.b.shape[1], _float_bits(part.scale)]
        )
    return fields + [0] * (FIELDS - len(fields))


def _float_bits(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])
