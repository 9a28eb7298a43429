from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.engine.attention.kv_cache import KvSlot, SlotAllocator, SlotCopy, slot_size
from hermes.engine.sampling.prefix_cache import BLOCK, CachedSlot, PrefixIndex
from hermes.engine.types import Ints


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=80))
def test_slots_never_overlap_and_everything_comes_back(steps: list[tuple[bool, int]]) -> None:
    slots, taken = SlotAllocator(200), list[KvSlot]()
    for take, number in steps:
        if take:
            slot = slots.allocate(number)
            if slot is not None:
                taken.append(slot)
        elif taken:
            slots.free(taken.pop(number % len(taken)))
        covered = sorted((slot.start, slot.start + slot.size) for slot in taken)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(covered))
        assert all(start >= 0 and end <= 200 for start, end in covered)
        assert slots.used == sum(slot.size for slot in taken)
    for slot in taken:
        slots.free(slot)
    assert slots.allocate(200) == KvSlot(0, 200)


def test_slots_of_one_size_lie_side_by_side_and_holes_are_filled_first() -> None:
    slots = SlotAllocator(1000)
    taken = [slots.allocate(96) for _ in range(5)]
    assert [slot.start for slot in taken if slot] == [0, 96, 192, 288, 384]
    assert taken[1] is not None
    slots.free(taken[1])
    assert slots.allocate(96) == KvSlot(96, 96)
    assert slots.allocate(1000) is None


@given(st.integers(1, 200_000))
def test_a_slot_holds_what_it_must_and_wastes_at_most_a_half(tokens: int) -> None:
    size = slot_size(tokens)
    assert size >= tokens and (size == 64 or size < 1.5 * tokens + 1)


def entry(tokens: Ints, policy: str | None = None, ready: int | None = None) -> CachedSlot:
    return CachedSlot(policy, KvSlot(0, 64), tokens, ready=len(tokens) if ready is None else ready)


def numbers(size: int, seed: int = 0) -> Ints:
    return np.random.default_rng(seed).integers(0, 1000, size)


def test_the_longest_common_beginning_is_found_to_the_token() -> None:
    index, prompt = PrefixIndex(), numbers(200)
    for size in (20, 75, 50):
        index.add(entry(np.concatenate([prompt[:size], numbers(30, seed=size)])))
    match = index.find(None, prompt, 199)
    assert match is not None and match.tokens == 75
    shorter = index.find(None, prompt, 60)
    assert shorter is not None and shorter.tokens == 60


def test_an_equal_prompt_is_found_among_many_with_the_same_blocks() -> None:
    """The groups of a batch: the chat template is the same for all, only the last tokens differ."""
    index, shared = PrefixIndex(), np.arange(2 * BLOCK)
    prompts = [np.append(shared, [group, 7, 7, 7]) for group in range(100)]
    entries = [entry(prompt) for prompt in prompts]
    for made in entries:
        index.add(made)
    for prompt, made in zip(prompts, entries, strict=True):
        match = index.find(None, prompt, len(prompt) - 1)
        assert match is not None and match.entry is made and match.tokens == len(prompt) - 1
    for made in entries:
        index.remove(made)
    assert index.find(None, prompts[0], len(prompts[0]) - 1) is None


def test_a_policy_never_finds_what_another_has_computed() -> None:
    index, prompt = PrefixIndex(), numbers(100)
    index.add(entry(prompt, policy="old"))
    assert index.find("new", prompt, 99) is None
    assert index.find(None, prompt, 99) is None
    assert index.find("old", prompt, 99) is not None


def test_beginnings_shorter_than_a_block_do_not_count() -> None:
    index, prompt = PrefixIndex(), numbers(100)
    index.add(entry(np.concatenate([prompt[: BLOCK - 1], numbers(50, seed=9)])))
    assert index.find(None, prompt, 99) is None


def test_the_longest_unused_is_evicted_first_and_never_the_spared_one() -> None:
    index = PrefixIndex()
    entries = [entry(numbers(40, seed)) for seed in range(3)]
    for one in entries:
        index.add(one)
        index.finish(one, one.tokens)
    index.touch(entries[0])
    assert index.evict(keep=entries[1]) is entries[2]
    assert index.evict(keep=entries[1]) is entries[0]
    assert index.evict(keep=entries[1]) is None
    assert index.find(None, entries[0].tokens, 40) is None
    assert index.find(None, entries[1].tokens, 40) is not None


def test_a_removed_entry_leaves_nothing_behind() -> None:
    index = PrefixIndex()
    one = entry(numbers(100))
    index.add(one)
    index.finish(one, numbers(120, seed=3))
    assert index.find(None, numbers(100), 100) is None, "it holds other tokens now"
    index.remove(one)
    assert not index._blocks and not len(index)


_COPY = st.builds(SlotCopy, st.integers(0, 30), st.integers(0, 30), st.integers(1, 10)).filter(
    lambda copy: abs(copy.source - copy.target) >= copy.tokens
)


@settings(deadline=None)
@given(_COPY, _COPY)
def test_copies_that_do_not_depend_on_each_other_give_the_same_in_any_order(
    first: SlotCopy, second: SlotCopy
) -> None:
    def copied(*copies: SlotCopy) -> list[int]:
        pool = list(range(50))
        for source, target, tokens in copies:
            pool[target : target + tokens] = pool[source : source + tokens]
        return pool

    if not second.depends_on(first):
        assert copied(first, second) == copied(second, first)
    assert second.depends_on(first) == first.depends_on(second)
