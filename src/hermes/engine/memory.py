"""Out of memory, and how much there is."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import torch

from hermes.engine.types import EngineCapacityError

_WORDS = ("allocate memory", "not enough memory", "out of memory", "_STATUS_ALLOC_FAILED", "bad_alloc")
"""Of torch's allocator on a CPU, Intel's and others; of CUDA, its driver and Triton; of cuBLAS and cuDNN; of
C++."""


def is_out_of_memory(error: BaseException) -> bool:
    """torch has a type of its own for this where its GPU allocator fails; everybody else says so in words."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def capacity_error(error: BaseException, what: str) -> EngineCapacityError:
    text = str(error)
    reason = text.splitlines()[0] if text else "no more memory"
    return EngineCapacityError(
        f"There was not enough memory for {what}: {reason}",
        "Send less at once; other requests were not affected.",
    )


def free_bytes(device: torch.device) -> int:
    """Memory that could be taken on the device now; half of what there is where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _available_bytes() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def reset_peak(device: torch.device) -> None:
    """`peak_bytes` counts from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """The most at once: of tensors on a GPU; of the whole process on a CPU, and 0 where that is not told."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _told("/proc/self/status", "VmHWM")


def _available_bytes() -> int:
    """Linux's own reckoning, which counts the file cache as free; 0 where it does not say."""
    return _told("/proc/meminfo", "MemAvailable")


def _told(path: str, name: str) -> int:
    """The bytes that Linux has under this name in one of its tables; 0 where there is none."""
    try:
        text = Path(path).read_text()
    except OSError:
        return 0
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
