"""Names for weights: what they mean, when they move, and that holding one keeps its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from hermes.engine.checkpoints.store import CheckpointPath, CheckpointStore, TrainingRun
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.server.policies import MAX_IN_MEMORY, MAX_ON_DISK, Policies, PolicyNames
from hermes.engine.types import (
    AdamParams,
    Datum,
    EngineUserError,
    LoraConfig,
    Loss,
    SampleRequest,
    SamplingParams,
)
from tests.engine.http.engine_process import tokens

RUN = TrainingRun("s:train:0", "s", "tiny", LoraConfig(rank=2), 1.0)
PATH = CheckpointPath(RUN.id, "sampler_weights", "one")
IDS = np.array(tokens(8))


class Desk(NamedTuple):
    engine: Engine
    store: CheckpointStore
    names: PolicyNames
    adapter: str

    def snapshot(self) -> str:
        """A policy unlike any before."""
        datum = Datum(IDS[:-1], {"target_tokens": IDS[1:], "weights": np.ones(7, np.float32)})
        self.engine.forward_backward(self.adapter, [datum], Loss("cross_entropy")).result()
        self.engine.optim_step(self.adapter, AdamParams(learning_rate=1e-2)).result()
        return self.engine.snapshot(self.adapter).result()

    def write(self, *, overwrite: bool = False) -> str:
        """A checkpoint of a new snapshot, under PATH; returns the snapshot."""
        policy_id = self.snapshot()
        draft = self.store.draft(PATH, overwrite=overwrite)
        self.engine.export(policy_id, draft).result()
        self.store.commit(PATH, draft, overwrite=overwrite)
        return policy_id

    def score(self, policy_id: str | None) -> float:
        request = SampleRequest(IDS, SamplingParams(max_tokens=1), prompt_logprobs=True)
        scores = self.engine.sample(policy_id, request).result().prompt_logprobs
        assert scores is not None
        return float(scores[1:].sum())

    async def meaning(self, name: str) -> float:
        async with self.names.use(name) as policy_id:
            return self.score(policy_id)


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Iterator[Engine]:
    one = Engine(EngineOptions(str(tiny_folder), device="cpu", dtype="float32"))
    one.start()
    yield one
    one.close()


@pytest.fixture
def desk(engine: Engine, tmp_path: Path) -> Iterator[Desk]:
    store = CheckpointStore(tmp_path)
    store.add_run(RUN)
    names = PolicyNames(Policies(engine, store, tmp_path / ".ephemeral"), ["tiny", "/models/tiny"])
    adapter = engine.create_adapter(RUN.lora).result()
    yield Desk(engine, store, names, adapter)
    engine.drop_adapter(adapter)
    store.close()


async def test_a_moving_name_means_the_newest_and_the_others_stay(desk: Desk) -> None:
    scores = []
    for key in ("s:sample:0", "s:sample:1"):
        policy_id = desk.snapshot()
        scores.append(desk.score(policy_id))
        desk.names.policies.add_snapshot(key, policy_id)
        desk.names.set(key, key)
        desk.names.set("policy", key)
        assert await desk.meaning("policy") == scores[-1]
    assert scores[0] != scores[1]
    assert await desk.meaning("s:sample:0") == scores[0]
    assert await desk.meaning("tiny") == await desk.meaning("/models/tiny") == desk.score(None)
    desk.names.drop("s:sample:1")
    assert await desk.meaning("policy") == scores[1]  # still held by its other name
    with pytest.raises(EngineUserError, match="'s:sample:1' does not exist"):
        desk.names.resolve("s:sample:1")
    with pytest.raises(EngineUserError, match="base model"):
        desk.names.set("tiny", "s:sample:0")


async def test_weights_that_nobody_names_any_more_leave_the_engine(desk: Desk) -> None:
    before = len(desk.engine.policies())
    desk.names.policies.add_snapshot("s:sample:0", desk.snapshot())
    desk.names.set("s:sample:0", "s:sample:0")
    assert len(desk.engine.policies()) == before + 1
    desk.names.drop("s:sample:0")
    assert len(desk.engine.policies()) == before


async def test_beyond_its_room_memory_is_left_for_disk_and_the_weights_stay_the_same(
    desk: Desk, tmp_path: Path
) -> None:
    before = len(desk.engine.policies())
    scores = []
    for number in range(MAX_IN_MEMORY + 3):
        policy_id = desk.snapshot()
        scores.append(desk.score(policy_id))
        desk.names.policies.add_snapshot(str(number), policy_id)
        desk.names.set(str(number), str(number))
    await desk.names.policies.trim()
    assert len(desk.engine.policies()) == before + MAX_IN_MEMORY
    assert len(list((tmp_path / ".ephemeral").iterdir())) == 3
    for number, score in enumerate(scores):
        assert await desk.meaning(str(number)) == pytest.approx(score, abs=1e-5)
    for number in range(MAX_IN_MEMORY + 3):
        desk.names.drop(str(number))
    assert len(desk.engine.policies()) == before
    assert list((tmp_path / ".ephemeral").iterdir()) == []


async def test_weights_without_a_checkpoint_do_not_fill_the_disk(desk: Desk, tmp_path: Path) -> None:
    """A client that opens a sampler at every step never closes one."""
    policies, count = desk.names.policies, MAX_IN_MEMORY + MAX_ON_DISK + 5
    for number in range(count):
        policies.add_snapshot(str(number), desk.snapshot())
        desk.names.set(str(number), str(number))
        await policies.trim()
    assert len(list((tmp_path / ".ephemeral").iterdir())) == MAX_ON_DISK
    with pytest.raises(EngineUserError, match="these weights are gone: 32 newer ones"):
        await desk.meaning("4")
    await desk.meaning("5")
    for number in range(count):
        desk.names.drop(str(number))
    assert list((tmp_path / ".ephemeral").iterdir()) == []


async def test_who_holds_a_checkpoint_keeps_it_while_others_get_what_replaced_it(desk: Desk) -> None:
    policies = desk.names.policies
    old = desk.score(desk.write())
    desk.names.set("held", policies.checkpoint_key(PATH))
    await policies.copy_on_replace(desk.store.find(PATH))
    new = desk.score(desk.write(overwrite=True))
    assert new != old
    assert await desk.meaning("held") == pytest.approx(old, abs=1e-5)
    assert await desk.meaning(str(PATH)) == pytest.approx(new, abs=1e-5)
    await policies.copy_on_replace(desk.store.find(PATH))
    desk.store.delete(desk.store.find(PATH))
    with pytest.raises(EngineUserError, match="no checkpoint"):
        await desk.meaning(str(PATH))
    assert await desk.meaning("held") == pytest.approx(old, abs=1e-5)


async def test_weights_that_were_replaced_are_an_error_and_never_those_that_replaced_them(desk: Desk) -> None:
    """A request can resolve the name just before the replacement, when nothing holds the weights yet."""
    policies = desk.names.policies
    desk.write()
    old_key = policies.checkpoint_key(PATH)
    policies.acquire(old_key)
    new = desk.score(desk.write(overwrite=True))
    with pytest.raises(EngineUserError, match="was replaced or deleted"):
        async with policies.use(old_key):
            pass
    policies.release(old_key)
    assert await desk.meaning(str(PATH)) == pytest.approx(new, abs=1e-5)


async def test_a_path_that_is_resolved_before_its_snapshot_is_taken_over_keeps_one_copy(desk: Desk) -> None:
    before = len(desk.engine.policies())
    policy_id = desk.write()
    key = desk.names.policies.checkpoint_key(PATH)
    desk.names.policies.acquire(key)
    desk.names.policies.add_checkpoint(desk.store.find(PATH), policy_id)
    async with desk.names.policies.use(key) as used:
        assert used == policy_id
    assert len(desk.engine.policies()) == before + 1
    desk.names.policies.release(key)


async def test_weights_that_an_alias_refers_to_are_never_dropped(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes.engine.server.policies.MAX_ON_DISK", 1)
    policies = desk.names.policies
    scores = []
    for number in range(MAX_IN_MEMORY + 4):
        policy_id = desk.snapshot()
        scores.append(desk.score(policy_id))
        policies.add_snapshot(f"s:sample:{number}", policy_id)
        desk.names.set(f"s:sample:{number}", f"s:sample:{number}")
        if number == 0:
            desk.names.set("kept", "s:sample:0")
        await policies.trim()
    assert await desk.meaning("kept") == pytest.approx(scores[0], abs=1e-5)
    with pytest.raises(EngineUserError, match="are gone"):
        await desk.meaning("s:sample:1")
