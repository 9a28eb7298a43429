"""Blocks of neighbouring queries of a sequence: one program of an attention kernel computes one block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.packing import ranges
from hermes.engine.transfer import to_device
from hermes.engine.types import Ints

QUERY_ROWS = 64
"""Rows of a program's matrix products: queries of a block, times the heads that share a key head."""


@dataclass(frozen=True, slots=True, eq=False)
class QueryBlocks:
    """int32 columns, [blocks] each: first query row, number of queries, first key row, first position."""

    columns: tuple[Tensor, Tensor, Tensor, Tensor]

    def __len__(self) -> int:
        return len(self.columns[0])


def query_blocks(
    lengths: Ints, key_starts: Ints, first_positions: Ints, heads_per_kv: int, device: torch.device
) -> QueryBlocks:
    """Blocks of sequences of `lengths` queries, one after the other.

    The keys of a sequence begin at row `key_starts`; its first query is the token at `first_positions`.
    """
    size = QUERY_ROWS // heads_per_kv
    counts = -(-lengths // size)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    first = ranges(np.zeros_like(counts), counts) * size
    row_starts = np.cumsum(lengths) - lengths
    columns = (
        row_starts[sequence] + first,
        np.minimum(lengths[sequence] - first, size),
        key_starts[sequence],
        first_positions[sequence] + first,
    )
    # Blocks with the most keys first: a long one that starts last would run alone.
    order = np.argsort(-columns[3], kind="stable")
    first_rows, sizes, starts, positions = to_device(
        [column[order].astype(np.int32) for column in columns], device
    )
    return QueryBlocks((first_rows, sizes, starts, positions))
