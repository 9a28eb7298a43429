"""Which totals a list of sizes can make: the plain definition that packing is held against."""

from __future__ import annotations

from collections.abc import Iterable


def sums_of(sizes: Iterable[int]) -> set[int]:
    sums = {0}
    for size in sizes:
        sums |= {total + size for total in sums}
    return sums
