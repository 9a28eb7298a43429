"""The attention kernels against each other and against plain attention."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.query_blocks import query_blocks

LENGTHS, KEY_STARTS, FIRST = np.array([40, 1, 90, 7]), np.array([5, 50, 60, 170]), np.array([0, 3, 12, 80])
SHAPES = ((6, 2, 24, None), (4, 4, 16, 20), (9, 3, 64, 50), (8, 2, 128, None))
"""Heads, key heads, dimension, window."""


def check_blocks(device: torch.device, dtype: torch.dtype) -> None:
    """Queries in blocks and one by one have the same bits, and are those of plain attention.

    Sequences that continue others, windows, several chunks, odd widths; rows divided among programs and not.
    """
    from hermes.engine.kernels import attention as kernels

    generator = torch.Generator().manual_seed(0)
    first_positions = np.concatenate([np.arange(n) + f for n, f in zip(LENGTHS, FIRST, strict=True)])
    starts, positions = (
        torch.from_numpy(column).to(device) for column in (np.repeat(KEY_STARTS, LENGTHS), first_positions)
    )
    for heads, kv, dim, window in SHAPES:
        q = torch.randn(int(LENGTHS.sum()), heads, dim, generator=generator).to(device, dtype)
        keys, values = torch.randn(2, 300, kv, dim, generator=generator).to(device, dtype)
        plan = query_blocks(LENGTHS, KEY_STARTS, FIRST, heads // kv, device)
        out, lse = kernels.attend_blocks(q, keys, values, plan, window, lse=True)
        wanted, wanted_lse = _plain_attention(q, keys, values, starts, positions, window)
        torch.testing.assert_close(out.float(), wanted, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(lse, wanted_lse, rtol=1e-2, atol=1e-2)
        for rows in (slice(None), slice(60, 62)):
            alone = kernels.attend_rows(q[rows], keys, values, starts[rows], positions[rows], 120, window)
            assert torch.equal(alone, out[rows])


def _plain_attention(
    q: Tensor, keys: Tensor, values: Tensor, starts: Tensor, positions: Tensor, window: int | None
) -> tuple[Tensor, Tensor]:
    """The output, and the log-sum-exp of the scores [heads, T]; in fp32."""
    heads, dim = q.shape[1:]
    keys, values = (part.float().repeat_interleave(heads // part.shape[1], 1) for part in (keys, values))
    outputs, log_sums = [], []
    for query, start, position in zip(q.float(), starts.tolist(), positions.tolist(), strict=True):
        visible = slice(start + max(0, position + 1 - (window or 10**6)), start + position + 1)
        scores = torch.einsum("hd,thd->ht", query, keys[visible]) * dim**-0.5
        outputs.append(torch.einsum("ht,thd->hd", scores.softmax(-1), values[visible]))
        log_sums.append(scores.logsumexp(-1))
    return torch.stack(outputs), torch.stack(log_sums, 1)
