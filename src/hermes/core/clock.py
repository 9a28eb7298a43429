"""The wall clock, in the unit in which everything is recorded."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000
