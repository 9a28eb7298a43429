"""The facade: training and sampling through futures, on a tiny model in fp32."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hermes.engine.engine import Engine
from hermes.engine.info import EngineClosedError, EngineOptions
from hermes.engine.model.cpu_prepacked import has_bf16
from hermes.engine.types import (
    AdamParams,
    Datum,
    EngineCapacityError,
    EngineUserError,
    Floats,
    Ints,
    LoraConfig,
    Loss,
    SampleRequest,
    SamplingParams,
)
from hermes.errors import HostError
from tests.engine.sampling_parts import prompt
from tests.waiting import wait_until

CROSS_ENTROPY = Loss("cross_entropy")
PROBE = prompt(60, 42)
ADAM = AdamParams(learning_rate=0.02)


@pytest.fixture(scope="module")
def start(folder: Path) -> Iterator[Callable[..., Engine]]:
    torch.set_num_threads(1)
    engines: list[Engine] = []

    def one(**options: Any) -> Engine:
        options = {"kv_bytes": 64 << 20, **options}
        made = Engine(EngineOptions(str(folder), device="cpu", dtype="float32", **options))
        made.start()
        engines.append(made)
        return made

    yield one
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def engine(start: Callable[..., Engine]) -> Engine:
    return start()


@pytest.fixture
def adapter(engine: Engine) -> Iterator[str]:
    adapter_id = engine.create_adapter(LoraConfig(rank=4, seed=1)).result()
    yield adapter_id
    engine.drop_adapter(adapter_id)


def datum(tokens: Ints) -> Datum:
    weights = np.ones(len(tokens) - 1, np.float32)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights})


def train(engine: Engine, adapter_id: str, steps: int = 1, seed: int = 7) -> None:
    for step in range(steps):
        engine.forward_backward(adapter_id, [datum(prompt(40, seed + step))], CROSS_ENTROPY)
        engine.optim_step(adapter_id, ADAM).result()


def sampler_logprobs(engine: Engine, policy_id: str | None) -> Floats:
    request = SampleRequest(PROBE, SamplingParams(max_tokens=1), prompt_logprobs=True)
    found = engine.sample(policy_id, request).result().prompt_logprobs
    assert found is not None
    return found[1:]


def trainer_logprobs(engine: Engine, adapter_id: str) -> Floats:
    output = engine.forward_backward(adapter_id, [datum(PROBE)], CROSS_ENTROPY, forward_only=True)
    return output.result().logprobs[0]


def test_an_old_sampler_keeps_its_weights_and_the_new_one_has_the_new_ones(
    engine: Engine, adapter: str
) -> None:
    train(engine, adapter)
    old = engine.snapshot(adapter).result()
    before = sampler_logprobs(engine, old)
    assert np.abs(before - trainer_logprobs(engine, adapter)).max() < 1e-3
    train(engine, adapter, 3)
    new = engine.snapshot(adapter).result()
    after = sampler_logprobs(engine, new)
    assert np.array_equal(sampler_logprobs(engine, old), before)
    assert np.abs(after - before).max() > 0.1
    assert np.abs(after - trainer_logprobs(engine, adapter)).max() < 1e-3


def test_sampling_an_old_policy_leaves_training_as_it_was(
    engine: Engine, adapter: str, tmp_path: Path
) -> None:
    train(engine, adapter)
    old = engine.snapshot(adapter).result()
    engine.save(adapter, tmp_path / "early", optimizer=False).result()
    train(engine, adapter, 2)
    before = trainer_logprobs(engine, adapter)
    sampler_logprobs(engine, old)
    sampler_logprobs(engine, engine.load_policy(tmp_path / "early").result())
    assert np.array_equal(trainer_logprobs(engine, adapter), before)


def test_sampled_logprobs_are_the_trainers_own(engine: Engine, adapter: str) -> None:
    train(engine, adapter, 2)
    policy = engine.snapshot(adapter).result()
    request = SampleRequest(PROBE, SamplingParams(max_tokens=30, stop=(), seed=5), num_samples=4)
    sequences = engine.sample(policy, request).result().sequences
    data = [datum(np.concatenate([PROBE, one.tokens])) for one in sequences]
    trained = engine.forward_backward(adapter, data, CROSS_ENTROPY, forward_only=True).result()
    for sequence, logprobs in zip(sequences, trained.logprobs, strict=True):
        assert np.abs(sequence.logprobs - logprobs[len(PROBE) - 1 :]).max() < 1e-3


def test_calls_on_one_adapter_run_in_the_order_they_were_made(engine: Engine) -> None:
    ids = [engine.create_adapter(LoraConfig(rank=4, seed=3)).result() for _ in range(2)]
    for step in range(3):
        engine.forward_backward(ids[0], [datum(prompt(40, step))], CROSS_ENTROPY).result()
        engine.optim_step(ids[0], ADAM).result()
    futures: list[Future[Any]] = []
    for step in range(3):
        futures.append(engine.forward_backward(ids[1], [datum(prompt(40, step))], CROSS_ENTROPY))
        futures.append(engine.optim_step(ids[1], ADAM))
    quick = engine.snapshot(ids[1])
    assert np.array_equal(
        sampler_logprobs(engine, quick.result()), sampler_logprobs(engine, engine.snapshot(ids[0]).result())
    )
    assert all(future.done() for future in futures)
    assert engine.adapter(ids[1]).steps == 3 and engine.adapter(ids[1]).waiting == 0


def test_training_and_sampling_take_turns(engine: Engine, adapter: str) -> None:
    ended: list[str] = []
    other = engine.create_adapter(LoraConfig(rank=4)).result()
    large = [datum(prompt(400, n)) for n in range(60)]
    futures: dict[str, Future[Any]] = {"large": engine.forward_backward(adapter, large, CROSS_ENTROPY)}
    futures["sample"] = engine.sample(None, SampleRequest(PROBE, SamplingParams(max_tokens=20, stop=())))
    futures["small"] = engine.forward_backward(other, [datum(PROBE)], CROSS_ENTROPY)
    futures["after"] = engine.optim_step(adapter, ADAM)
    for name, future in futures.items():
        future.add_done_callback(lambda _, name=name: ended.append(name))  # type: ignore[misc]
    for future in futures.values():
        future.result()
    wait_until(lambda: len(ended) >= 4)
    assert ended.index("large") > max(ended.index("sample"), ended.index("small"))
    assert ended[-1] == "after"
    stats = engine.stats()
    assert stats.sampling_s > 0 and stats.training_s > 0 and stats.trained_tokens >= 60 * 399


def test_a_request_is_cancelled_while_it_runs_and_others_are_not(engine: Engine) -> None:
    seen = threading.Event()
    request = SampleRequest(
        PROBE, SamplingParams(max_tokens=400, stop=()), num_samples=4, on_token=lambda *_: seen.set()
    )
    doomed = engine.sample(None, request)
    kept = engine.sample(None, SampleRequest(PROBE, SamplingParams(max_tokens=50, stop=())))
    assert seen.wait(30)
    engine.cancel(doomed)
    with pytest.raises(CancelledError):
        doomed.result()
    assert len(kept.result().sequences[0].tokens) == 50
    wait_until(lambda: not engine.stats().sampling_running)


def test_closing_ends_every_future(start: Callable[..., Engine]) -> None:
    engine = start()
    adapter_id = engine.create_adapter(LoraConfig(rank=4)).result()
    seen = threading.Event()
    running = SampleRequest(PROBE, SamplingParams(max_tokens=450, stop=()), on_token=lambda *_: seen.set())
    waiting = SampleRequest(PROBE, SamplingParams(max_tokens=450, stop=()), num_samples=500)
    futures: list[Future[Any]] = [engine.sample(None, running), engine.sample(None, waiting)]
    large = [datum(prompt(400, n)) for n in range(200)]
    futures += [engine.forward_backward(adapter_id, large, CROSS_ENTROPY) for _ in range(3)]
    assert seen.wait(30)
    engine.close()
    assert all(isinstance(future.exception(timeout=5), EngineClosedError) for future in futures)
    late: list[Future[Any]] = [
        engine.sample(None, running),
        engine.optim_step(adapter_id, ADAM),
        engine.load_policy(Path("x")),
    ]
    assert all(isinstance(future.exception(timeout=5), EngineClosedError) for future in late)
    engine.close()


def test_an_engine_that_never_started_ends_its_futures_too(folder: Path) -> None:
    engine = Engine(EngineOptions(str(folder), device="cpu", dtype="float32", kv_bytes=1 << 20))
    future = engine.sample(None, SampleRequest(PROBE, SamplingParams(max_tokens=2)))
    engine.close()
    assert isinstance(future.exception(timeout=5), EngineClosedError)


def test_what_is_dropped_is_freed(start: Callable[..., Engine]) -> None:
    engine = start()
    adapter_id = engine.create_adapter(LoraConfig(rank=4)).result()
    policy_id = engine.snapshot(adapter_id).result()
    sampler_logprobs(engine, policy_id)
    held = engine._registry.adapter(adapter_id).adapter
    frozen = engine._registry.policy(policy_id).policy.weights
    assert frozen is not None
    gone = [weakref.ref(held.parameters), *(weakref.ref(group.a) for group in frozen.groups.values())]
    del held, frozen
    stats = engine.stats()
    assert stats.adapter_bytes > stats.policy_bytes > 0 and stats.kv_tokens_used > 0
    waiting = engine.forward_backward(adapter_id, [datum(prompt(400, n)) for n in range(50)], CROSS_ENTROPY)
    engine.drop_adapter(adapter_id)
    engine.drop_policy(policy_id)
    with pytest.raises(EngineUserError, match="dropped"):
        waiting.result()
    engine.sample(None, SampleRequest(PROBE[:5], SamplingParams(max_tokens=1))).result()
    assert [one() is None for one in gone] == [True] * len(gone)
    stats = engine.stats()
    assert (stats.adapters, stats.policies, stats.adapter_bytes, stats.policy_bytes) == (0, 0, 0, 0)
    assert stats.kv_tokens_used == 64, "the base model's own sequence"


def test_the_engine_goes_on_after_the_only_adapter_with_work_was_dropped(engine: Engine) -> None:
    adapter_id = engine.create_adapter(LoraConfig(rank=4)).result()
    large = [datum(prompt(400, n)) for n in range(40)]
    futures = [engine.forward_backward(adapter_id, large, CROSS_ENTROPY) for _ in range(3)]
    engine.drop_adapter(adapter_id)
    with pytest.raises(EngineUserError, match="was dropped"):
        futures[-1].result()
    assert engine.sample(None, SampleRequest(PROBE, SamplingParams(max_tokens=2, stop=()))).result()


def test_a_request_under_way_survives_the_drop_of_its_policy(engine: Engine, adapter: str) -> None:
    policy_id = engine.snapshot(adapter).result()
    future = engine.sample(policy_id, SampleRequest(PROBE, SamplingParams(max_tokens=60, stop=())))
    engine.drop_policy(policy_id)
    assert len(future.result().sequences[0].tokens) == 60
    late = engine.sample(policy_id, SampleRequest(PROBE, SamplingParams(max_tokens=1)))
    with pytest.raises(EngineUserError, match="no policy"):
        late.result()


def test_a_resumed_adapter_goes_on_exactly_as_if_it_had_never_stopped(
    engine: Engine, adapter: str, tmp_path: Path
) -> None:
    train(engine, adapter, 3)
    size = engine.save(adapter, tmp_path / "state", optimizer=True).result()
    assert size == sum(path.stat().st_size for path in (tmp_path / "state").iterdir())
    train(engine, adapter, 2, seed=50)
    resumed = engine.create_adapter(LoraConfig(rank=4, seed=9)).result()
    engine.load(resumed, tmp_path / "state", optimizer=True).result()
    train(engine, resumed, 2, seed=50)
    wanted = trainer_logprobs(engine, adapter)
    assert np.array_equal(trainer_logprobs(engine, resumed), wanted)
    assert engine.adapter(resumed).steps == 5
    engine.load(resumed, tmp_path / "state", optimizer=False).result()
    train(engine, resumed, 2, seed=50)
    assert engine.adapter(resumed).steps == 2
    assert np.abs(trainer_logprobs(engine, resumed) - wanted).max() > 1e-3, "fresh moments make other steps"


def test_an_exported_policy_samples_the_same_when_loaded(
    engine: Engine, adapter: str, tmp_path: Path
) -> None:
    train(engine, adapter, 2)
    policy = engine.snapshot(adapter).result()
    assert engine.export(policy, tmp_path / "peft").result() > 0
    loaded = engine.load_policy(tmp_path / "peft").result()
    assert np.allclose(sampler_logprobs(engine, loaded), sampler_logprobs(engine, policy), atol=1e-5)
    assert {one.id: one.adapter_id for one in engine.policies()}[policy] == adapter
    assert {one.id: one.adapter_id for one in engine.policies()}[loaded] is None


def test_a_full_disk_leaves_the_old_checkpoint_whole(engine: Engine, small_disk: Path) -> None:
    adapter_id = engine.create_adapter(LoraConfig(rank=2, seed=1, train_unembed=False)).result()
    place = small_disk / "state"
    train(engine, adapter_id)
    engine.save(adapter_id, place, optimizer=True).result()
    saved = trainer_logprobs(engine, adapter_id)
    train(engine, adapter_id, 2)
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(HostError, match="could not be saved"):
        engine.save(adapter_id, place, optimizer=True).result()
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "state"]
    engine.load(adapter_id, place, optimizer=True).result()
    assert np.array_equal(trainer_logprobs(engine, adapter_id), saved)
    (small_disk / "filler").unlink()
    train(engine, adapter_id)
    engine.save(adapter_id, place, optimizer=True).result()
    assert sorted(path.name for path in small_disk.iterdir()) == ["state"]


def test_unknown_names_and_limits_come_through_the_futures(
    start: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = start(max_adapters=1, max_length=100)
    assert engine.spec.max_length == 100
    only = engine.create_adapter(LoraConfig(rank=4)).result()
    unknown: list[Future[Any]] = [
        engine.forward_backward("nobody", [], CROSS_ENTROPY),
        engine.optim_step("nobody", ADAM),
        engine.snapshot("nobody"),
        engine.save("nobody", tmp_path / "x", optimizer=True),
        engine.load(only, tmp_path / "nothing", optimizer=True),
        engine.export("nobody", tmp_path / "x"),
        engine.load_policy(tmp_path / "nothing"),
        engine.sample("nobody", SampleRequest(PROBE)),
        engine.sample(None, SampleRequest(prompt(101))),
        engine.forward_backward(only, [datum(prompt(120))], CROSS_ENTROPY),
        engine.forward_backward(only, [datum(PROBE)], Loss("unheard of")),
    ]
    assert [type(future.exception(timeout=30)) for future in unknown] == [EngineUserError] * len(unknown)
    with pytest.raises(EngineUserError, match="nobody"):
        engine.adapter("nobody")
    with pytest.raises(EngineCapacityError, match="1 adapters"):
        engine.create_adapter(LoraConfig(rank=4)).result()
    engine.drop_adapter(only)
    with pytest.raises(EngineUserError, match="rank"):
        engine.create_adapter(LoraConfig(rank=100_000)).result()
    engine.create_adapter(LoraConfig(rank=4)).result()


def test_wrong_options_are_refused(folder: Path) -> None:
    for device in ("tpu", "cuda:", "cuda:x", "cpu:1"):
        with pytest.raises(EngineUserError, match="is not a device"):
            Engine(EngineOptions(str(folder), device=device))
    with pytest.raises(EngineUserError, match="not on 'cuda:1'") as other:
        Engine(EngineOptions(str(folder), device="cuda:1"))
    assert "CUDA_VISIBLE_DEVICES=1" in other.value.hint
    with pytest.raises(EngineUserError, match="dtype"):
        Engine(EngineOptions(str(folder), device="cpu", dtype="int3"))
    with pytest.raises(EngineUserError, match="could not be loaded"):
        Engine(EngineOptions("/nowhere/at/all"))
    with pytest.raises(EngineCapacityError, match="hold 2 tokens"):
        Engine(EngineOptions(str(folder), device="cpu", dtype="float32", kv_bytes=2000))
    with pytest.raises(EngineUserError, match="513 is more than the 512 tokens"):
        Engine(EngineOptions(str(folder), device="cpu", dtype="float32", max_length=513))
    with pytest.raises(EngineCapacityError, match="that are free"):
        Engine(EngineOptions(str(folder), device="cpu", dtype="float32", kv_bytes=1 << 60, max_batch=1 << 50))


def test_bf16_on_a_processor_without_it_is_warned_about(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Engine(EngineOptions(str(folder), device="cpu", dtype="float32"))
    assert "bfloat16" not in caplog.text
    Engine(EngineOptions(str(folder), device="cpu", dtype="bfloat16"))
    assert ("a hundred times as slowly" in caplog.text) is not has_bf16()


def test_training_is_not_bounded_by_the_memory_for_sampling(start: Callable[..., Engine]) -> None:
    engine = start(kv_bytes=64 * 768)
    assert engine.spec.max_length == 64
    adapter = engine.create_adapter(LoraConfig(rank=2)).result()
    output = engine.forward_backward(adapter, [datum(prompt(200))], CROSS_ENTROPY).result()
    assert len(output.logprobs[0]) == 199
    with pytest.raises(EngineUserError, match="context limit of 512"):
        engine.forward_backward(adapter, [datum(prompt(514))], CROSS_ENTROPY).result()
