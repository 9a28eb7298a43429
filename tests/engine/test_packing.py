"""Packs hold every sequence, share what begins alike, and stay within the budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes.engine.attention.packing import MAX_DEPTH, MIN_SHARED, Pack, pack, pack_unshared
from hermes.engine.attention.varlen import node_tree, plan_repeat, repeat_rows, shared_key_copies
from hermes.engine.types import Ints

PARTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=4)
SEQUENCES = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1), min_size=1, max_size=12)),
    min_size=1,
    max_size=12,
)


def build(parts: Sequence[Sequence[int]], chosen: Sequence[tuple[int, Sequence[int]]]) -> list[Ints]:
    """Sequences that begin with one of a few common runs, which themselves begin alike."""
    beginnings = [np.concatenate(parts[: count + 1]) for count in range(len(parts))]
    return [np.array([*beginnings[which % len(beginnings)], *rest]) for which, rest in chosen]


def visible(batch: Pack) -> list[set[int]]:
    """Per row, the rows it attends to, as the plan says."""
    seen: list[set[int]] = [set() for _ in batch.tokens]
    for node in batch.nodes:
        for row in range(node.start, node.end):
            seen[row].update(range(node.start, row + 1))
        for row in range(node.end, node.subtree_end):
            seen[row].update(range(node.start, node.end))
    return seen


def expect_faithful(batch: Pack, sequences: Sequence[Ints]) -> None:
    seen = visible(batch)
    for member, rows in zip(batch.members, batch.rows, strict=True):
        assert np.array_equal(batch.tokens[rows], sequences[member])
        assert np.array_equal(batch.positions[rows], np.arange(len(rows)))
        for position, row in enumerate(rows):
            assert seen[row] == set(rows[: position + 1].tolist())


@settings(deadline=None)
@given(parts=PARTS, chosen=SEQUENCES, budget=st.integers(1, 120))
def test_every_token_of_every_sequence_sees_exactly_what_came_before_it(
    parts: list[list[int]], chosen: list[tuple[int, list[int]]], budget: int
) -> None:
    sequences = build(parts, chosen)
    packs = pack(sequences, budget)
    assert sorted(member for batch in packs for member in batch.members) == list(range(len(sequences)))
    for batch in packs:
        expect_faithful(batch, sequences)
        assert len(batch.tokens) <= budget or len(batch.members) == 1


@settings(deadline=None)
@given(parts=PARTS, chosen=SEQUENCES)
def test_without_sharing_nothing_is_shared(
    parts: list[list[int]], chosen: list[tuple[int, list[int]]]
) -> None:
    sequences = build(parts, chosen)
    batch = pack_unshared(sequences)
    expect_faithful(batch, sequences)
    assert len(batch.tokens) == sum(map(len, sequences))
    (same,) = pack(sequences, 10_000, share=False)
    assert np.array_equal(same.tokens, batch.tokens)


def test_a_common_beginning_is_there_once_and_a_short_one_is_not_worth_it() -> None:
    rng = np.random.default_rng(0)
    for length, once in ((MIN_SHARED, True), (MIN_SHARED - 1, False)):
        prompt = rng.integers(0, 9, length)
        sequences = [np.append(prompt, [10 + index] * 5) for index in range(4)]
        (batch,) = pack(sequences, 1000)
        assert len(batch.tokens) == (length + 20 if once else 4 * (length + 5))


def test_a_sequence_that_another_begins_with_costs_nothing() -> None:
    longest = np.arange(40)
    (batch,) = pack([longest[:25], longest, longest[:8], longest, longest[:1]], 1000)
    assert len(batch.tokens) == 40
    assert len(batch.nodes) == 1


def test_branches_off_branches_end_at_the_greatest_depth() -> None:
    trunk = np.arange(400)
    sequences = [np.append(trunk[: 10 * (index + 1)], [500 + index] * 12) for index in range(40)]
    (batch,) = pack(sequences, 100_000)
    expect_faithful(batch, sequences)
    assert max(node.depth for node in batch.nodes) == MAX_DEPTH


def test_a_group_over_the_budget_is_split_and_its_prompt_computed_in_each_part() -> None:
    prompt = np.arange(50)
    sequences = [np.append(prompt, [100 + index] * 10) for index in range(8)]
    packs = pack(sequences, 90)
    assert [len(batch.members) for batch in packs] == [4, 4]
    assert [len(batch.tokens) for batch in packs] == [90, 90]


@settings(deadline=None)
@given(parts=PARTS, chosen=SEQUENCES)
def test_repeated_keys_are_those_a_node_may_see_and_their_gradients_add_up(
    parts: list[list[int]], chosen: list[tuple[int, list[int]]]
) -> None:
    sequences = build(parts, chosen)
    (batch,) = pack(sequences, 10_000)
    tree = node_tree(batch)
    seen = visible(batch)
    paths = np.split(tree.key_rows, np.cumsum(tree.key_lengths)[:-1])
    for node, path in zip(batch.nodes, paths, strict=True):
        assert seen[node.end - 1] == set(path.tolist())
        assert np.array_equal(batch.positions[path], np.arange(len(path)))
    repeat = plan_repeat(batch, tree, torch.device("cpu"))
    x = torch.randn(len(batch.tokens), 2, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(len(tree.key_rows), 2, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(repeat_rows(x, repeat), x, upstream)
    expected = torch.zeros_like(x).index_add(0, torch.as_tensor(tree.key_rows), upstream)
    torch.testing.assert_close(gradient, expected.detach(), atol=1e-5, rtol=1e-5)


@settings(deadline=None)
@given(parts=PARTS, chosen=SEQUENCES)
def test_the_copies_of_a_row_are_found_from_its_node_and_position(
    parts: list[list[int]], chosen: list[tuple[int, list[int]]]
) -> None:
    (batch,) = pack(build(parts, chosen), 10_000)
    tree = node_tree(batch)
    copies = shared_key_copies(batch, tree, torch.device("cpu"))
    assert (copies is None) == (len(tree.key_rows) == len(batch.tokens))
    if copies is not None:
        found: list[list[int]] = [[] for _ in batch.tokens]
        for row, (node, position) in enumerate(
            zip(copies.node.tolist(), copies.position.tolist(), strict=True)
        ):
            found[row] = [
                int(copies.key_offsets[one]) + position for one in range(node, int(copies.subtree_end[node]))
            ]
        assert found == [np.flatnonzero(tree.key_rows == row).tolist() for row in range(len(batch.tokens))]
