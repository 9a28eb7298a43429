"""Plans to the device: many small arrays in one copy, which on a GPU nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGN = 16


def ship(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays as tensors on the device, there before whatever is launched next."""
    whole = [np.ascontiguousarray(one) for one in arrays]
    starts = np.cumsum([0, *(-(-one.nbytes // _ALIGN) * _ALIGN for one in whole)]).tolist()
    # From pinned memory the copy waits its turn behind the device's work, and the host does not.
    staged = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    flat = staged.numpy()
    for one, start in zip(whole, starts[:-1], strict=True):
        flat[start : start + one.nbytes] = one.reshape(-1).view(np.uint8)
    there = staged.to(device, non_blocking=True)
    return [
        there[start : start + one.nbytes].view(torch.from_numpy(one[:0]).dtype).view(one.shape)
        for one, start in zip(whole, starts[:-1], strict=True)
    ]
