"""How many groups of each size make exactly a batch: a bounded subset sum. Pure.

Taking groups in order of arrival can end with room for less than any group that is left: ten groups of 3 fill
30 of 32 sequences, where eight of them and two of 4 fill all. Sums are the bits of one integer, so a batch of
thousands of sequences costs a few shifts for each size.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class Supply(NamedTuple):
    """The groups of one kind that can be taken."""

    size: int
    """Sequences in each of them; at least 1."""
    available: int
    preferred: int
    """How many a batch in order of arrival would take."""


def exact_counts(supplies: Mapping[K, Supply], total: int) -> dict[K, int] | None:
    """How many of each kind to take so that their sizes add up to `total`; None if no numbers do.

    Of several solutions it is one that is near the preferred numbers.
    """
    kinds = list(supplies.items())
    sums = _reachable_sums([supply for _, supply in kinds], total)
    if not sums[-1] >> total & 1:
        return None
    counts: dict[K, int] = {}
    missing = total
    for (kind, supply), sums_before in zip(reversed(kinds), reversed(sums[:-1]), strict=True):
        most = min(supply.available, missing // supply.size)
        count = next(
            n for n in _nearest_first(supply.preferred, most) if sums_before >> missing - n * supply.size & 1
        )
        counts[kind] = count
        missing -= count * supply.size
    return counts


def _reachable_sums(supplies: Sequence[Supply], total: int) -> list[int]:
    """Bit s of item i: some groups of the first i kinds add up to s."""
    mask = (1 << total + 1) - 1
    sums = [1]
    for supply in supplies:
        reachable, left, chunk = sums[-1], min(supply.available, total // supply.size), 1
        while left > 0:  # chunks of 1, 2, 4, … groups give every number up to `left`
            count = min(chunk, left)
            reachable |= reachable << count * supply.size & mask
            left -= count
            chunk *= 2
        sums.append(reachable)
    return sums


def _nearest_first(preferred: int, most: int) -> Iterator[int]:
    """The numbers from 0 to `most`, those near `preferred` first."""
    start = min(preferred, most)
    yield start
    for distance in range(1, most + 1):
        if start - distance >= 0:
            yield start - distance
        if start + distance <= most:
            yield start + distance
