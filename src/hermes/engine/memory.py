"""Out-of-memory errors, free and peak memory of a device, and what the process's allocator keeps."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from hermes.core.memory import available_bytes, read_kilobytes
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


GROWTH_BYTES = 256 << 20
"""A growth after which freed memory is returned: below it the next step uses it again."""
CHECK_S = 2.0


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
    return available_bytes() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


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
    return read_kilobytes("/proc/self/status", "VmHWM")


class FreedMemory:
    """Returns freed memory to the system when the process has grown.

    glibc keeps what is freed below the top of a heap. With tensors of ever-changing sizes that grows to
    several times what is in use. Only glibc has the function for it; elsewhere nothing is done.
    """

    def __init__(
        self,
        rss_bytes: Callable[[], int] | None = None,
        trim: Callable[[], None] | None = None,
    ) -> None:
        self._rss_bytes = rss_bytes or (lambda: read_kilobytes("/proc/self/status", "VmRSS"))
        self._trim = trim or trim_heap
        self._floor_bytes = self._rss_bytes()
        """The memory of the process after the last return, or less."""
        self._checked_s = time.monotonic()

    def check(self, now_s: float | None = None) -> None:
        """To be called often: looks every few seconds, and trims after a growth of GROWTH_BYTES."""
        now_s = time.monotonic() if now_s is None else now_s
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        self.trim_if_grown()

    def trim_if_grown(self) -> None:
        self._floor_bytes = min(self._floor_bytes, self._rss_bytes())
        if self._rss_bytes() - self._floor_bytes >= GROWTH_BYTES:
            self._trim()
            self._floor_bytes = self._rss_bytes()


def trim_heap() -> None:
    """Returns the free pages of all heaps to the system, where glibc is the allocator."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
