"""Reads how much memory this machine has left, and other fields of /proc that are given in kB."""

from __future__ import annotations

import re
from pathlib import Path


def available_bytes() -> int:
    """Linux's estimate, which counts the file cache as free; 0 on other systems."""
    return read_kilobytes("/proc/meminfo", "MemAvailable")


def read_kilobytes(path: str, name: str) -> int:
    """The field of a file of /proc that is given in kB, in bytes; 0 if it does not exist."""
    try:
        text = Path(path).read_text()
    except OSError:
        return 0
    match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
