"""Which adapter a row has: tiles of one adapter each, slots that make room, weights as kernels read them."""

from __future__ import annotations

import secrets
from pathlib import Path

import numpy as np
import pytest
import torch

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.lora.adapter import optim_step
from hermes.engine.lora.adapter_table import FIELDS, AdapterRows, AdapterTable, PolicySlots, row_tiles
from hermes.engine.lora.weights import RANK_MULTIPLE, Policy
from hermes.engine.types import AdamParams, EngineUserError
from tests.engine.layer_parts import CPU, made
from tests.engine.sampling_parts import BASE, Bench, policies
from tests.engine.tiny import tiny_model


def test_tiles_cover_every_row_once_and_never_two_adapters() -> None:
    seed = secrets.randbelow(1 << 30)
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        tile_rows = int(rng.choice([16, 32]))
        spans = [(int(rng.integers(0, 9)), int(rng.integers(0, 70))) for _ in range(rng.integers(1, 12))]
        slots = np.concatenate([np.full(rows, slot) for slot, rows in spans])
        covered = np.full(len(slots), -1)
        for first, end, slot in row_tiles(spans, tile_rows):
            assert 0 < end - first <= tile_rows
            assert (covered[first:end] == -1).all()
            covered[first:end] = slot
        assert np.array_equal(covered, slots)


def test_a_table_names_the_matrices_of_an_adapter_and_an_empty_slot_names_none() -> None:
    backbone, adapter = made("llama", rank=5)
    weights = adapter.freeze().aligned()
    table = AdapterTable(backbone.spec.groups, CPU, 3)
    table.write(1, weights)
    site, group = next(iter(weights.groups.items()))
    entry = table.entries[1, table.sites[site]].tolist()
    assert entry[:2] == [group.a.data_ptr(), len(group.a)]
    assert [entry[2 + 4 * number] for number in range(len(group.parts))] == [
        part.b.data_ptr() for part in group.parts if part
    ]
    assert table.entries.shape[2] == FIELDS and not table.entries[0].any()
    assert table.rank == RANK_MULTIPLE
    table.clear(1)
    assert not table.entries.any()


@pytest.mark.parametrize("rank", [1, 5, 16, 20])
def test_aligned_weights_are_the_same_adapter(rank: int) -> None:
    _, adapter = made("qwen2", rank=rank)
    weights = adapter.freeze()
    for site, group in weights.aligned().groups.items():
        plain = weights.groups[site]
        x = torch.randn(3, group.a.shape[1], generator=torch.Generator().manual_seed(0))
        outs = tuple(torch.zeros(3, part.b.shape[0]) for part in group.parts if part)
        for ours, theirs in zip(group.add(x, outs), plain.add(x, outs), strict=True):
            torch.testing.assert_close(ours, theirs)
        matrices = [group.a, *(part.b for part in group.parts if part)]
        assert all(matrix.data_ptr() % 16 == 0 and matrix.is_contiguous() for matrix in matrices)
        assert not any(part.b.shape[1] % RANK_MULTIPLE for part in group.parts if part)


def test_the_table_of_an_adapter_follows_its_weights() -> None:
    _, adapter = made("llama", rank=16)
    first = adapter.table(torch.float32)
    assert adapter.table(torch.float32) is first
    adapter.gradient.normal_(generator=torch.Generator().manual_seed(0))
    optim_step(adapter, AdamParams(learning_rate=1e-2))
    assert adapter.table(torch.float32) is not first
    rows = AdapterRows.for_spans(adapter.table(torch.bfloat16), [(0, 70)])
    assert rows.tiles.tolist() == [[0, 32, 0], [32, 64, 0], [64, 70, 0]]


def slot_of(slots: PolicySlots, policy: Policy, *running: Policy) -> int:
    return slots.slot(policy, running)


def test_the_least_recently_used_policy_makes_room_but_never_a_running_one() -> None:
    bench = Bench()
    first, second, third, fourth = policies(bench, 4)
    slots = PolicySlots(bench.backbone.spec, CPU, 2)
    assert slot_of(slots, BASE) == 0
    numbers = [slot_of(slots, first), slot_of(slots, second)]
    assert sorted(numbers) == [1, 2]
    assert slot_of(slots, first) == numbers[0], "it is there already, and now the one used last"
    assert slot_of(slots, third, first) == numbers[1]
    assert slot_of(slots, fourth, third, fourth) == numbers[0]
    slots.drop(third)
    assert not slots.table.entries[numbers[1]].any()
    assert slot_of(slots, second, fourth) == numbers[1]


def test_exact_is_refused_on_a_cpu_with_what_to_do(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    with pytest.raises(EngineUserError, match="--exact needs a GPU and bfloat16") as refused:
        Engine(EngineOptions(str(tmp_path), "cpu", "float32", exact=True))
    assert "without --exact" in str(refused.value.hint)
