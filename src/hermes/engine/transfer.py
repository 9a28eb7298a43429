"""Copies many small arrays to the device at once; to a GPU, without blocking the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGN = 16


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays as tensors on the device, valid for everything that is launched after this call."""
    contiguous = [np.ascontiguousarray(array) for array in arrays]
    starts = np.cumsum([0, *(-(-array.nbytes // _ALIGN) * _ALIGN for array in contiguous)]).tolist()
    # From pinned memory the copy is queued behind the device's work and does not block the host.
    staged = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    flat = staged.numpy()
    for array, start in zip(contiguous, starts[:-1], strict=True):
        flat[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    on_device = staged.to(device, non_blocking=True)
    return [
        on_device[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for array, start in zip(contiguous, starts[:-1], strict=True)
    ]
