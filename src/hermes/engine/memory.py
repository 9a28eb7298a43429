"""Out of memory, and how much there is."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from hermes.engine.types import EngineCapacityError


def is_out_of_memory(error: BaseException) -> bool:
    """torch has a type of its own for this on a GPU only; on a CPU the allocator says so in words."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def capacity_error(error: BaseException, what: str) -> EngineCapacityError:
    text = str(error)
    reason = text.splitlines()[0] if text else "no more memory"
    return EngineCapacityError(
        f"There was not enough memory for {what}: {reason}",
        "Send less at once; other requests were not affected.",
    )


def free_bytes(device: torch.device) -> int:
    """Memory that could be taken on the device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _available_bytes() or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _available_bytes() -> int:
    """Linux's own reckoning, which counts the file cache as free; 0 where it does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 0
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
