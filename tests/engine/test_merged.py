"""Copies of the model with adapters merged in: whose weights are in them, and who makes room for whom."""

from __future__ import annotations

import pytest
import torch

from hermes.engine.lora.policy import Policy
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.sampling.merged_weights import MAX_COPIES, MergedCopies, MergedCopy
from tests.engine.sampling_parts import BASE, Bench, policies

PLENTY = 1 << 40


@pytest.fixture
def bench() -> Bench:
    return Bench()


def base_of(bench: Bench) -> LlamaBackbone:
    assert isinstance(bench.backbone, LlamaBackbone)
    return bench.backbone


def copies(bench: Bench, free_bytes: int = PLENTY) -> MergedCopies:
    return MergedCopies(base_of(bench), 8, lambda: free_bytes)


def holds(copy: MergedCopy | None, bench: Bench, policy: Policy) -> bool:
    """Whether the copy's weights are the base's with the policy's adapter added, matrix by matrix."""
    assert copy is not None and policy.weights is not None
    merged = base_of(bench).merged(policy.weights)
    pairs = [(copy.backbone.head_weight, merged.head_weight)]
    for mine, wanted in zip(copy.backbone.layers, merged.layers, strict=True):
        pairs += [(mine.qkv, wanted.qkv), (mine.o, wanted.o)]
        pairs += [(mine.gate_up, wanted.gate_up), (mine.down, wanted.down)]
    return all(torch.equal(*pair) for pair in pairs)


def test_each_policy_has_a_copy_of_its_own_and_the_base_is_untouched(bench: Bench) -> None:
    before = [layer.qkv.clone() for layer in base_of(bench).layers]
    made, some = copies(bench), policies(bench, MAX_COPIES)
    found = [made.merge(policy, some) for policy in some]
    assert len({id(copy) for copy in found}) == MAX_COPIES
    assert all(holds(copy, bench, policy) for copy, policy in zip(found, some, strict=True))
    plain = made.merge(BASE, some)
    assert plain is not None and plain.backbone is bench.backbone
    assert all(map(torch.equal, before, (layer.qkv for layer in base_of(bench).layers)))


def test_the_longest_unused_makes_room_but_never_what_is_running(bench: Bench) -> None:
    made, some = copies(bench), policies(bench, MAX_COPIES + 2)
    first, second, third, fourth, fifth = some
    kept = [made.merge(policy, ()) for policy in (first, second, third)]
    assert made.merge(first, ()) is kept[0], "it is there already, and now the one used last"
    assert made.merge(fourth, [second]) is kept[2]
    assert made.get(third) is None and holds(made.get(fourth), bench, fourth)
    assert made.merge(fifth, [first, second, fourth]) is None
    assert holds(made.get(second), bench, second)


def test_a_dropped_policy_leaves_its_copy_to_the_next(bench: Bench) -> None:
    made, (first, second) = copies(bench), policies(bench, 2)
    copy = made.merge(first, ())
    made.drop(first)
    assert made.get(first) is None
    assert made.merge(second, ()) is copy and holds(copy, bench, second)


def test_where_memory_is_short_there_is_one_copy(bench: Bench) -> None:
    made, (first, second) = copies(bench, free_bytes=0), policies(bench, 2)
    copy = made.merge(first, ())
    assert made.merge(second, [first, second]) is None
    assert made.merge(second, [second]) is copy
