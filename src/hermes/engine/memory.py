"""Out-of-memory errors, and free and peak memory of a device."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import torch

from hermes.engine.types import EngineCapacityError

_OUT_OF_MEMORY_TEXTS = (
    "allocate memory",
    "not enough memory",
    "out of memory",
    "_STATUS_ALLOC_FAILED",
    "bad_alloc",
)
"""Messages of torch's CPU allocator, of Intel's and others; of CUDA, its driver and Triton; of cuBLAS and
cuDNN; of C++."""


def is_out_of_memory(error: BaseException) -> bool:
    """Only torch's GPU allocator has an exception type; other libraries are recognised by the message."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS)


def capacity_error(error: BaseException, subject: str) -> EngineCapacityError:
    text = str(error)
    reason = text.splitlines()[0] if text else "no more memory"
    return EngineCapacityError(
        f"There was not enough memory for {subject}: {reason}",
        "Send less at once; other requests were not affected.",
    )


def free_bytes(device: torch.device) -> int:
    """Free memory of the device; half of all memory where the system does not report it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _available_bytes() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def reset_peak(device: torch.device) -> None:
    """Restarts the measurement of `peak_bytes`."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """Peak memory: of tensors on a GPU, of the process on a CPU; 0 where the system does not report it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _read_kilobytes("/proc/self/status", "VmHWM")


def _available_bytes() -> int:
    """Linux's estimate, which counts the file cache as free; 0 on other systems."""
    return _read_kilobytes("/proc/meminfo", "MemAvailable")


def _read_kilobytes(path: str, name: str) -> int:
    """The field of a file of /proc that is given in kB, in bytes; 0 if it does not exist."""
    try:
        text = Path(path).read_text()
    except OSError:
        return 0
    match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
