"""How many kills the nightly tests make of each process, and the line that tells what came of them.

HERMES_KILLS=200 pytest -m slow -s tests/security/test_many_kills.py tests/rl/test_many_kills.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

KILLS = int(os.environ.get("HERMES_KILLS", "200"))


@contextmanager
def account(victim: str) -> Iterator[dict[str, int]]:
    """Prints the figures that the block writes down, once it has ended without an error."""
    figures: dict[str, int] = {}
    begin = time.monotonic()
    yield figures
    listed = ", ".join(f"{value:,} {name}" for name, value in figures.items())
    print(f"\n{victim}: {KILLS} kills, {listed}, {time.monotonic() - begin:.0f} s")
