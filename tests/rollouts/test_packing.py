"""Batches against a plain reading of the rules, and what must hold whatever is queued."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.rollouts.core.buffer import Buffer
from hermes.rollouts.core.packing import Demand, choose, no_batch_reason
from hermes.rollouts.core.queue import Queue, QueuedGroup, QueueEntry
from tests.rollouts.sums import sums_of


def groups_of(*sizes: int, env_id: int | None = None, first: int = 0) -> list[QueuedGroup]:
    return [QueuedGroup(first + index, env_id, size, 1, 0.0) for index, size in enumerate(sizes)]


def by_the_rules(queue: list[QueuedGroup], batch_size: int) -> list[QueuedGroup]:
    """The packing rule read literally: packs as large as the largest group, in order of completion."""
    largest = max(group.size for group in queue)
    collecting: dict[int, list[QueuedGroup]] = {}
    eligible: list[QueuedGroup] = []
    for group in queue:
        pack = collecting.setdefault(group.size, [])
        pack.append(group)
        if len(pack) * group.size == largest:
            eligible += pack
            pack.clear()
    return exactly(eligible, batch_size)


def exactly(groups: list[QueuedGroup], batch_size: int) -> list[QueuedGroup]:
    total = 0
    for index, group in enumerate(groups):
        total += group.size
        if total >= batch_size:
            return groups[: index + 1] if total == batch_size else []
    return []


def shares_by_the_rules(
    queue: list[QueuedGroup], batch_size: int, minimums: dict[int, float]
) -> list[QueuedGroup]:
    """The same with minimum shares: packs of each environment; first the shares, then queue order."""
    largest = max(group.size for group in queue)
    collecting: dict[tuple[int | None, int], list[QueuedGroup]] = {}
    eligible: dict[int | None, list[QueuedGroup]] = {}
    for group in queue:
        pack = collecting.setdefault((group.env_id, group.size), [])
        pack.append(group)
        if len(pack) * group.size == largest:
            eligible.setdefault(group.env_id, []).extend(pack)
            pack.clear()
    wanted = {env: int(batch_size * share) for env, share in minimums.items() if int(batch_size * share) > 0}
    if any(env not in eligible for env in wanted):
        return []
    total = sum(wanted.values())
    if total > batch_size:
        smallest = {env: min(group.size for group in eligible[env]) for env in wanted}
        wanted = {env: max(smallest[env], int(n * (batch_size / total))) for env, n in wanted.items()}
    batch: list[QueuedGroup] = []
    for env, need in wanted.items():
        given_to = 0
        for group in eligible[env]:
            if given_to < need and sum(g.size for g in batch) + group.size <= batch_size:
                batch.append(group)
                given_to += group.size
    packed = {group.id for packs in eligible.values() for group in packs}
    for group in queue:
        room = batch_size - sum(g.size for g in batch)
        if group.id in packed and group not in batch and group.size <= room:
            batch.append(group)
    return batch if sum(group.size for group in batch) == batch_size else []


SIZES = st.sampled_from([[1, 2, 4], [4], [2, 4, 8], [1, 3, 4], [2, 3, 6], [1, 2, 3, 4, 5, 6, 7, 8, 11]])


@st.composite
def queues(draw: st.DrawFn) -> list[QueuedGroup]:
    sizes = draw(SIZES)
    kinds = draw(
        st.lists(st.tuples(st.sampled_from(sizes), st.sampled_from([None, 0, 1, 2])), min_size=1, max_size=30)
    )
    return [QueuedGroup(index, env_id, size, 1, 0.0) for index, (size, env_id) in enumerate(kinds)]


MINIMUMS = st.dictionaries(
    st.sampled_from([0, 1, 2]), st.sampled_from([0.1, 0.25, 0.5, 0.6, 1.0]), max_size=3
)


@given(queues(), st.sampled_from([4, 8, 12, 16, 24]), MINIMUMS)
def test_batches_are_exact_first_in_first_out_and_as_the_rules_say(
    queued: list[QueuedGroup], batch_size: int, minimums: dict[int, float]
) -> None:
    queue, demand = Queue(queued), Demand(batch_size, minimums)
    left = list(queued)
    while left:
        odd = queue.sizes - demand.fitting(queue.sizes)
        batch = choose(queue.lanes, demand)
        if not odd:
            literal = (
                shares_by_the_rules(left, batch_size, minimums)
                if minimums
                else by_the_rules(left, batch_size)
            )
            assert literal in ([], batch)
        if not batch:
            assert no_batch_reason(queue.lanes, demand)
            assert minimums or batch_size not in sums_of(group.size for group in left)
            return
        assert sum(group.size for group in batch) == batch_size
        assert len(set(batch)) == len(batch)
        for lane in {(group.env_id, group.size) for group in batch}:
            waiting = [group for group in left if (group.env_id, group.size) == lane]
            taken = [group for group in batch if (group.env_id, group.size) == lane]
            assert taken == waiting[: len(taken)]
        queue.remove(batch)
        left = [group for group in left if group not in batch]
        assert list(queue) == left
        assert (queue.groups, queue.sequences) == (len(left), sum(group.size for group in left))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((2, 4, 2, 4, 2), [1, 0, 2]),
        ((9, 2, 2, 2, 2), [1, 2, 3, 4]),
        ((7, 4, 4), [1, 2]),
        ((0, 8), [1]),
        ((4, 2, 1, 1), [0, 1, 2, 3]),
        ((3, 3, 2), [0, 1, 2]),
        ((5, 5, 5), []),
        ((2, 2, 2), []),
    ],
)
def test_what_fits_is_served_and_the_rest_waits(sizes: tuple[int, ...], expected: list[int]) -> None:
    assert [group.id for group in choose(Queue(groups_of(*sizes)).lanes, Demand(8))] == expected


def test_a_batch_is_found_where_the_order_of_arrival_leaves_room_that_nothing_fills() -> None:
    ten_threes_first = Queue(groups_of(*[3] * 95, *[4] * 2))
    batch = choose(ten_threes_first.lanes, Demand(32))
    assert [group.size for group in batch].count(4) == 2
    assert [group.id for group in batch] == [*range(8), 95, 96], "the oldest of each size"
    with_a_share = Queue([*groups_of(*[3] * 40, env_id=0), *groups_of(*[4] * 5, env_id=1, first=50)])
    shared = choose(with_a_share.lanes, Demand(32, {0: 0.5}))
    assert sum(group.size for group in shared) == 32
    assert sum(group.size for group in shared if group.env_id == 0) >= 16


@pytest.mark.parametrize(("slow_groups", "expected"), [(3, [10, 11, 0, 1]), (1, [10, 0, 1, 2]), (0, [])])
def test_a_minimum_share_is_best_effort_but_never_skipped(slow_groups: int, expected: list[int]) -> None:
    queue = Queue([*groups_of(2, 2, 2, 2, env_id=1), *groups_of(*[2] * slow_groups, env_id=0, first=10)])
    assert [group.id for group in choose(queue.lanes, Demand(8, {0: 0.5}))] == expected


def test_a_size_fits_if_it_and_others_can_make_a_batch() -> None:
    assert Demand(12).fitting({8}) == set()
    assert Demand(12).fitting({8, 4}) == {8, 4}
    assert Demand(12, expected_sizes=frozenset({4})).fitting({8}) == {8}
    assert Demand(1_000_003).fitting({7, 9, 1_000_004, 0}) == {7, 9}
    assert Demand(10).fitting({4, 6, 7}) == {4, 6}


class Watched(deque[QueueEntry]):
    """A lane that counts how often one of its groups is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[QueueEntry]:
        for entry in super().__iter__():
            Watched.looks += 1
            yield entry


@pytest.mark.parametrize("minimums", [{}, {0: 0.25, 1: 0.5}])
def test_forming_a_batch_looks_at_no_more_groups_the_more_are_queued(minimums: dict[int, float]) -> None:
    looks = []
    for queued in (400, 40_000):
        rng = random.Random(0)
        queue = Queue(QueuedGroup(i, rng.randrange(4), rng.choice((2, 4, 8)), 1, 0.0) for i in range(queued))
        watched = {key: Watched(lane) for key, lane in queue.lanes.items()}
        Watched.looks = 0
        assert choose(watched, Demand(64, minimums)) == choose(queue.lanes, Demand(64, minimums))
        looks.append(Watched.looks)
    assert looks[0] == looks[1] < 150


def test_parts_leave_oldest_first_or_else_with_the_newest() -> None:
    buffer = Buffer(6)
    three, two, four = groups_of(3, 2, 4)
    assert buffer.add(three) == []
    assert buffer.add(two) == []
    assert not buffer.completes(2)
    assert buffer.completes(4)
    assert buffer.add(four) == [two, four]
    assert (buffer.parts, buffer.sequences) == ([three], 3)
    assert [part.size for part in buffer.add(groups_of(3, first=9)[0])] == [3, 3]


@given(st.integers(2, 12), st.lists(st.integers(1, 11), max_size=30))
def test_no_part_is_lost_and_what_can_leave_does(target: int, sizes: list[int]) -> None:
    buffer = Buffer(target)
    parts = groups_of(*(min(size, target - 1) for size in sizes))
    left: list[QueuedGroup] = []
    for part in parts:
        completes = buffer.completes(part.size)
        leaving = buffer.add(part)
        assert bool(leaving) == completes
        assert not leaving or sum(group.size for group in leaving) == target
        left += leaving
        assert sorted(g.id for g in [*left, *buffer.parts]) == [g.id for g in parts[: part.id + 1]]
        sums = {0}
        for waiting in buffer.parts:
            sums |= {total + waiting.size for total in sums}
        assert target not in sums
