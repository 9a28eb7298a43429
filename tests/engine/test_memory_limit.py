"""On a CPU the engine takes a stated amount of memory, whatever the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hermes.engine import setup
from hermes.engine.info import EngineOptions
from hermes.engine.types import EngineCapacityError
from tests.engine.tiny import tiny_model

GIB = 1 << 30
SMOLLM_BYTES = 135_000_000 * 4


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "free_bytes", lambda device: 256 * GIB)


def room(memory_gib: float | None = None, base_bytes: int = SMOLLM_BYTES) -> int:
    limit = None if memory_gib is None else int(memory_gib * GIB)
    return setup._cpu_room(EngineOptions("model", memory_bytes=limit), base_bytes)


@pytest.mark.usefixtures("plenty")
def test_the_room_does_not_grow_with_the_machine_but_with_the_setting() -> None:
    assert room() == room(4)
    assert room(8) == room(4) + 4 * GIB
    assert 2 * GIB < room() < 3 * GIB


@pytest.mark.usefixtures("plenty")
def test_a_larger_model_gets_room_beside_its_weights() -> None:
    assert room(base_bytes=6 * GIB) == 7 * GIB // 4


def test_a_machine_with_little_free_memory_gives_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "free_bytes", lambda device: 300 << 20)
    assert room() == 300 << 20


@pytest.mark.usefixtures("plenty")
def test_a_limit_that_does_not_hold_the_model_is_refused_with_what_it_needs() -> None:
    with pytest.raises(
        EngineCapacityError, match=r"1\.00 GiB are not enough for this model.*need 1\.69 GiB"
    ) as refused:
        room(1)
    assert "--memory-gib" in refused.value.hint


def test_keys_values_and_micro_batches_follow_the_limit(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    sizes = [
        setup.build(EngineOptions(str(tmp_path), "cpu", "float32", memory_bytes=limit, max_batch=1 << 20))
        for limit in (800 << 20, 1 << 30)
    ]
    kv_tokens = [parts.limits.kv_tokens for parts in sizes]
    assert kv_tokens[0] < kv_tokens[1]
    assert kv_tokens[1] * setup.kv_bytes_per_token(sizes[1].backbone.spec, torch.float32) < 1 << 30
