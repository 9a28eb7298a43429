"""Who has which item on the screen, so that two people who rate at once do not get the same one.

A lease lasts two minutes and is renewed by every request about its item. Losing all of them (a restart) loses
no rating: at worst two people rate one item.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LEASE_S = 120.0
_MAX_SKIPPED = 10_000


class ItemLeases:
    """Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[tuple[str, str], tuple[str, float]] = {}
        self._skipped: dict[tuple[str, str], set[str]] = {}

    def unavailable(self, mode: str, rater: str) -> set[str]:
        """Items of this mode that another rater has, or that this rater skipped."""
        now_s = self._clock()
        with self._lock:
            self._leases = {key: lease for key, lease in self._leases.items() if lease[1] > now_s}
            leased = {
                item
                for (of_mode, item), (holder, _) in self._leases.items()
                if of_mode == mode and holder != rater
            }
            return leased | self._skipped.get((mode, rater), set())

    def take(self, mode: str, item: str, rater: str) -> bool:
        """False if another rater has it."""
        now_s = self._clock()
        with self._lock:
            holder, until_s = self._leases.get((mode, item), (rater, 0.0))
            if holder != rater and until_s > now_s:
                return False
            self._leases[mode, item] = (rater, now_s + LEASE_S)
            return True

    def release(self, mode: str, item: str, rater: str) -> None:
        with self._lock:
            if self._leases.get((mode, item), ("", 0.0))[0] == rater:
                del self._leases[mode, item]

    def skip(self, mode: str, item: str, rater: str) -> None:
        """The rater does not get the item again while the server runs."""
        self.release(mode, item, rater)
        with self._lock:
            skipped = self._skipped.setdefault((mode, rater), set())
            if len(skipped) < _MAX_SKIPPED:
                skipped.add(item)
