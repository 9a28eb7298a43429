"""Chooses the groups of the next batch. Pure.

A batch has exactly `batch_size` sequences and groups are never split. Groups of one size are bundled into
packs of as many sequences as the largest size has, and packs are taken in the order in which they became
complete, so that a batch of mixed sizes comes out even. Environments with a minimum share are served
first, up to that share.

A size that cannot be part of any batch (no sequences, more than a batch, or no sum with the other sizes that
is a batch) is set aside: it waits in the queue, and the rest is packed as if it were not there. Where the
largest size makes no batch, the next one is tried, then single groups in order of arrival, and at last any
numbers of groups that add up: if the queue holds a batch, it is found.

Cost: linear in the groups of one batch and in the number of lanes, however long they are.

The last is a bounded subset sum. Taking groups in order of arrival can end with room for less than any group
that is left: ten groups of 3 fill 30 of 32 sequences, where eight of them and two of 4 fill all. Sums are the
bits of one integer, so a batch of thousands of sequences costs a few shifts for each size.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, TypeVar

from hermes.rollouts.core.queue import Lane, LaneKey, QueuedGroup, QueueEntry

Lanes: TypeAlias = Mapping[LaneKey, Lane]


@dataclass(frozen=True, slots=True)
class Demand:
    """The requirements for a batch."""

    batch_size: int
    minimums: Mapping[int, float] = field(default_factory=dict)
    """Environment id → least share of each batch, 0 to 1, of the connected environments that have one."""
    expected_sizes: frozenset[int] = frozenset()
    """Group sizes of environments that may still send: together with them an odd size can fit."""

    def fitting(self, sizes: Collection[int]) -> frozenset[int]:
        """Which of `sizes` can be part of a batch."""
        return _fitting(frozenset(sizes), self.expected_sizes, self.batch_size)


@functools.lru_cache(maxsize=256)
def _fitting(sizes: frozenset[int], expected: frozenset[int], batch_size: int) -> frozenset[int]:
    possible = {size for size in sizes | expected if 0 < size <= batch_size}
    if not possible:
        return frozenset()
    least = _least_sums(possible)
    rests = {size: batch_size - size for size in possible & sizes}
    return frozenset(size for size, rest in rests.items() if least[rest % len(least)] <= rest)


def _least_sums(sizes: set[int]) -> list[float]:
    """For each remainder modulo the smallest size, the least sum of sizes that has it (infinite: none)."""
    modulus = min(sizes)
    least = [0.0] + [float("inf")] * (modulus - 1)
    heap = [0]
    while heap:
        total = heapq.heappop(heap)
        if total > least[total % modulus]:
            continue
        for size in sizes:
            if total + size < least[(total + size) % modulus]:
                least[(total + size) % modulus] = total + size
                heapq.heappush(heap, total + size)
    return least


def choose(lanes: Lanes, demand: Demand) -> list[QueuedGroup]:
    """The next batch in the order it is served; empty if there is none yet."""
    fitting = demand.fitting({size for _, size in lanes})
    lanes = {key: lane for key, lane in lanes.items() if key[1] in fitting}
    if sum(size * len(lane) for (_, size), lane in lanes.items()) < demand.batch_size:
        return []
    fill = _fill_with_minimums if demand.minimums else _fill_by_packs
    for lengths in _pack_lengths(fitting):
        packed = {key: lane for key, lane in lanes.items() if key[1] in lengths}
        if entries := fill(packed, lengths, demand):
            return [entry.group for entry in entries]
    return [entry.group for entry in _fill_exactly(lanes, demand)]


def _pack_lengths(sizes: Collection[int]) -> Iterator[dict[int, int]]:
    """The ways to bundle groups that are tried in turn: size → how many groups of it make a pack."""
    for pack_size in sorted(sizes, reverse=True):
        yield {size: pack_size // size for size in sizes if pack_size % size == 0}
    yield dict.fromkeys(sizes, 1)


@dataclass(slots=True)
class _Filling:
    """A batch being filled group by group; groups that no longer fit are skipped."""

    room: int
    entries: list[QueueEntry] = field(default_factory=list)
    taken: dict[LaneKey, int] = field(default_factory=dict)
    """Groups taken from the front of each lane. Room only shrinks, so a lane once skipped stays skipped."""

    def take(self, entry: QueueEntry) -> int:
        """The sequences taken: all of the group's, or 0."""
        size = entry.group.size
        if size > self.room:
            return 0
        key = (entry.group.env_id, size)
        self.entries.append(entry)
        self.taken[key] = self.taken.get(key, 0) + 1
        self.room -= size
        return size

    def packs(self, entries: Iterable[QueueEntry], size: int, length: int) -> Iterator[list[QueueEntry]]:
        """Complete packs of `length` groups, as long as a group of this size finds room."""
        source = iter(entries)
        while size <= self.room and len(pack := list(itertools.islice(source, length))) == length:
            yield pack


def _completed_at(pack: list[QueueEntry]) -> int:
    return pack[-1].order


def _fill_by_packs(lanes: Lanes, lengths: Mapping[int, int], demand: Demand) -> list[QueueEntry]:
    """The packs that were complete first, of any environment."""
    by_size: dict[int, list[Lane]] = {}
    for (_, size), lane in lanes.items():
        by_size.setdefault(size, []).append(lane)
    filling = _Filling(demand.batch_size)
    streams = [filling.packs(heapq.merge(*same), size, lengths[size]) for size, same in by_size.items()]
    for pack in heapq.merge(*streams, key=_completed_at):
        for entry in pack:
            filling.take(entry)
    return [] if filling.room else filling.entries


def _fill_with_minimums(lanes: Lanes, lengths: Mapping[int, int], demand: Demand) -> list[QueueEntry]:
    """Each minimum share first, then the remaining complete packs, oldest first."""
    complete: dict[LaneKey, int] = {}
    for key, lane in lanes.items():
        length = lengths[key[1]]
        if len(lane) >= length:
            complete[key] = len(lane) // length * length
    shares = _shares(complete, demand)
    if shares is None:
        return []
    filling = _Filling(demand.batch_size)
    for env_id, sequences in shares.items():
        env_lanes = {key: itertools.islice(lanes[key], n) for key, n in complete.items() if key[0] == env_id}
        streams = [filling.packs(entries, size, lengths[size]) for (_, size), entries in env_lanes.items()]
        for entry in (entry for pack in heapq.merge(*streams, key=_completed_at) for entry in pack):
            if sequences <= 0:
                break
            sequences -= filling.take(entry)
    rest = [
        filling.packs(itertools.islice(lanes[key], filling.taken.get(key, 0), count), key[1], 1)
        for key, count in complete.items()
    ]
    for pack in heapq.merge(*rest, key=_completed_at):
        filling.take(pack[0])
    return [] if filling.room else filling.entries


def _fill_exactly(lanes: Lanes, demand: Demand) -> list[QueueEntry]:
    """Each minimum share first, then the numbers of groups that fill the rest, oldest first.

    A share can leave a rest that nothing fills; then the environments get a little more than their share.
    """
    shares = _shares({key: len(lane) for key, lane in lanes.items()}, demand)
    if shares is None:
        return []
    for extra in range(max(size for _, size in lanes) if shares else 1):
        filling = _Filling(demand.batch_size)
        for env_id, sequences in shares.items():
            needed = sequences + extra
            for entry in heapq.merge(*(lane for key, lane in lanes.items() if key[0] == env_id)):
                if needed <= 0:
                    break
                needed -= filling.take(entry)
        if _fill_rest_exactly(lanes, filling):
            return filling.entries
    return []


def _fill_rest_exactly(lanes: Lanes, filling: _Filling) -> bool:
    """Fills the room to the last sequence, or changes nothing and returns False."""
    left: dict[LaneKey, list[QueueEntry]] = {}
    for key, lane in lanes.items():
        first = filling.taken.get(key, 0)
        left[key] = list(itertools.islice(lane, first, first + filling.room // key[1]))
    in_order: Counter[LaneKey] = Counter()
    room = filling.room
    for entry in heapq.merge(*left.values()):
        if room <= 0:
            break
        in_order[entry.group.env_id, entry.group.size] += 1
        room -= entry.group.size
    supplies = {key: Supply(key[1], len(entries), in_order[key]) for key, entries in left.items()}
    counts = exact_counts(supplies, filling.room)
    if counts is None:
        return False
    for entry in heapq.merge(*(left[key][:count] for key, count in counts.items())):
        filling.take(entry)
    return True


def _shares(complete: Collection[LaneKey], demand: Demand) -> dict[int, int] | None:
    """Sequences to take from each environment first; None if one with a share has no complete pack."""
    shares = {env_id: int(demand.batch_size * share) for env_id, share in demand.minimums.items()}
    shares = {env_id: sequences for env_id, sequences in shares.items() if sequences > 0}
    smallest: dict[int | None, int] = {}
    for env_id, size in complete:
        smallest[env_id] = min(size, smallest.get(env_id, size))
    if any(env_id not in smallest for env_id in shares):
        return None
    total = sum(shares.values())
    if total > demand.batch_size:
        scale = demand.batch_size / total
        return {env_id: max(smallest[env_id], int(n * scale)) for env_id, n in shares.items()}
    return shares


def no_batch_reason(lanes: Lanes, demand: Demand) -> str:
    """Why `choose` returned no batch, for the trainer's log."""
    if not lanes:
        return "no groups are queued"
    batch_size = demand.batch_size
    sizes = {size for _, size in lanes}
    fitting = demand.fitting(sizes)
    waiting = sum(size * len(lane) for (_, size), lane in lanes.items() if size in fitting)
    if not waiting:
        return (
            f"no queued group can be part of a batch of {batch_size} (group sizes: {_format_numbers(sizes)})"
        )
    if waiting < batch_size:
        return f"{waiting} of {batch_size} sequences are queued"
    present = {env_id for env_id, size in lanes if size in fitting}
    missing = [e for e, share in demand.minimums.items() if int(batch_size * share) and e not in present]
    if missing:
        return f"waiting for environments with a minimum share: {_format_numbers(missing)}"
    listed_sizes = _format_numbers(sizes)
    return f"the queued groups do not add up to a batch of {batch_size} yet (group sizes: {listed_sizes})"


def _format_numbers(numbers: Collection[int]) -> str:
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:8])) + (", …" if len(ordered) > 8 else "")


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
