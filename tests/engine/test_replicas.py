"""Several workers behind one front: the updates and samples of one, none lost or doubled when one dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hermes.engine.engine import Engine
from hermes.engine.replicas import fleet
from hermes.engine.replicas.front import EngineFront
from hermes.engine.replicas.sampling import PrefixRouter, join_outputs, split_by_prefix
from hermes.engine.types import (
    Datum,
    EngineCapacityError,
    EngineUserError,
    SampleRequest,
    SamplingParams,
    TrainOutput,
)
from tests.engine.replica_parts import (
    ADAM,
    IMPORTANCE,
    LORA,
    files,
    grpo_data,
    options,
    request,
    texts,
    train,
    wait_until,
)
from tests.engine.sampling_parts import prompt


def open_front(folder: Path, replicas: int, parts: int) -> EngineFront:
    """Every worker computes with one thread, however many there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "usable_processors", lambda: 1)
        return EngineFront(options(folder), replicas, parts)


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[EngineFront]:
    """A front with two workers."""
    front = open_front(folder, 2, 2)
    yield front
    front.close()


def both_workers(front: EngineFront) -> dict[str, int]:
    wait_until(lambda: len(front.workers) == 2)
    return front.workers


def test_a_call_is_split_by_cost_where_little_is_shared() -> None:
    data = grpo_data(groups=4)
    parts = split_by_prefix(data, 2)
    assert sorted(index for part in parts for index in part) == list(range(16))
    groups = [{index // 4 for index in part} for part in parts]
    assert groups[0].isdisjoint(groups[1]), "no prompt is computed twice"
    assert split_by_prefix(data, 2) == parts
    assert split_by_prefix([], 3) == []
    assert [len(part) for part in split_by_prefix(data[:2], 8)] in ([1, 1], [2])


def test_metrics_of_parts_join_to_those_of_all() -> None:
    ones = np.ones(2, np.float32)
    first = TrainOutput((ones,), {"loss:sum": 1.0, "ratio:mean": 2.0, "ratio:max": 3.0, "ratio:min": 1.0}, 10)
    second = TrainOutput(
        (2 * ones,), {"loss:sum": 2.0, "ratio:mean": 1.0, "ratio:max": 9.0, "ratio:min": 0.5}, 30
    )
    joined = join_outputs([[1], [0]], [first, second], 2)
    assert [float(values[0]) for values in joined.logprobs] == [2.0, 1.0]
    assert joined.metrics == {"loss:sum": 3.0, "ratio:mean": 1.25, "ratio:max": 9.0, "ratio:min": 0.5}


def test_requests_go_where_their_prefix_is_unless_another_worker_has_less_to_do() -> None:
    router = PrefixRouter(2)
    cached, other = prompt(400, 1), prompt(400, 2)
    first = router.route("p", cached, 1, 10, (0, 1))
    assert first.worker == 0
    assert router.route("p", other, 1, 10, (0, 1)).worker == 1, "the first one is busy"
    router.finish(first)
    again = router.route("p", cached, 1, 10, (0, 1))
    assert again.worker == 0 and again.work < first.work, "its prefix is cached there"
    assert router.route("q", cached, 1, 10, (0,)).work == first.work, "not for another policy"
    router.route("p", cached, 8, 64, (0,))
    assert router.route("p", cached, 1, 10, (0, 1)).worker == 1, "computing it again is faster than waiting"
    router.reset(0)
    assert router.route("p", cached, 1, 10, (0,)).work == first.work, "a new process has nothing cached"


def test_one_and_two_workers_train_the_same_bits_and_one_engine_the_same_update(
    folder: Path, pair: EngineFront, tmp_path: Path
) -> None:
    outputs, of_two = train(pair, 3, tmp_path / "two")
    alone = open_front(folder, 1, 2)
    try:
        outputs_alone, of_one = train(alone, 3, tmp_path / "one")
    finally:
        alone.close()
    assert files(of_two) == files(of_one)
    for left, right in zip(outputs, outputs_alone, strict=True):
        assert left.metrics == right.metrics
        assert all(np.array_equal(*pairs) for pairs in zip(left.logprobs, right.logprobs, strict=True))
    engine = Engine(options(folder))
    engine.start()
    try:
        outputs_plain, of_engine = train(engine, 3, tmp_path / "plain")
    finally:
        engine.close()
    for left, right in zip(outputs, outputs_plain, strict=True):
        assert left.metrics.keys() == right.metrics.keys()
        for name in left.metrics.keys() - {"computed_tokens:sum"}:
            assert left.metrics[name] == pytest.approx(right.metrics[name], rel=1e-3, abs=1e-4), name
    from safetensors.numpy import load

    for name, content in files(of_two).items():
        arrays, expected = load(content), load(files(of_engine)[name])
        for key, values in arrays.items():
            np.testing.assert_allclose(values, expected[key], atol=2e-3, err_msg=f"{name} {key}")


def test_adapters_that_do_not_fit_one_worker_are_spread_over_them(folder: Path) -> None:
    """Two workers of two adapters each train four; every update is that of an engine which has room."""
    engine, front = Engine(options(folder)), EngineFront(replace(options(folder), max_adapters=2), 2)
    engine.start()
    try:
        both_workers(front)
        ids = [
            [served.create_adapter(replace(LORA, seed=seed)).result() for seed in range(4)]
            for served in (engine, front)
        ]
        with pytest.raises(EngineCapacityError, match="holds 4 adapters already"):
            front.create_adapter(LORA).result()
        for step in range(3):
            for served, adapters in zip((engine, front), ids, strict=True):
                calls = [
                    served.forward_backward(adapter, grpo_data(step), IMPORTANCE) for adapter in adapters
                ]
                losses = [call.result().metrics["loss:sum"] for call in calls]
                if served is engine:
                    expected = losses
                for adapter in adapters:
                    served.optim_step(adapter, ADAM).result()
            assert losses == pytest.approx(expected, rel=1e-3, abs=1e-3)
        held = [client.stats.adapters for client in front._fleet.available().values() if client.stats]
        assert len(held) == 2 and max(held) <= 2, "no worker has more than fit"
        front.drop_adapter(ids[1][0])
        front.create_adapter(LORA).result()
    finally:
        front.close()
        engine.close()


def test_a_policy_is_on_every_worker_before_it_is_answered(pair: EngineFront) -> None:
    both_workers(pair)
    adapter = pair.create_adapter(LORA).result()
    policy = pair.snapshot(adapter).result()
    held = [client.stats.policies for client in pair._fleet.available().values() if client.stats]
    assert held == [1, 1]
    assert pair.sample(policy, request(1)).result().version == policy
    pair.drop_policy(policy)
    with pytest.raises(EngineUserError, match="no policy"):
        pair.sample(policy, request(1)).result()
    pair.drop_adapter(adapter)


def test_invalid_calls_fail_as_they_do_in_one_engine(pair: EngineFront) -> None:
    adapter = pair.create_adapter(LORA).result()
    data = grpo_data()
    wrong = Datum(data[7].tokens, {**data[7].inputs, "advantages": np.full(3, 1.0, np.float32)})
    with pytest.raises(EngineUserError, match="Datum 7: advantages has shape"):
        pair.forward_backward(adapter, [*data[:7], wrong], IMPORTANCE).result()
    with pytest.raises(EngineUserError, match="temperature"):
        pair.sample(None, SampleRequest(prompt(5), SamplingParams(temperature=-1.0))).result()
    cancelled = pair.sample(None, request(3, tokens=300))
    pair.cancel(cancelled)
    with pytest.raises(CancelledError):
        cancelled.result()
    assert pair.forward_backward(adapter, [], IMPORTANCE).result().logprobs == ()
    pair.drop_adapter(adapter)
    with pytest.raises(EngineUserError, match="no adapter"):
        pair.optim_step(adapter, ADAM).result()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_worker_killed_while_it_samples_loses_no_sample(pair: EngineFront) -> None:
    expected = [texts(pair.sample(None, request(seed, 200)).result()) for seed in range(6)]
    workers = both_workers(pair)
    streamed: list[tuple[int, int]] = []
    began = threading.Event()

    def on_token(sample: int, token: int, logprob: float) -> None:
        streamed.append((sample, token))
        began.set()

    listening = SampleRequest(
        prompt(40, 0), SamplingParams(max_tokens=200, seed=0, stop=()), 2, on_token=on_token
    )
    futures = [pair.sample(None, listening), *(pair.sample(None, request(seed, 200)) for seed in range(1, 6))]
    began.wait()
    for pid in workers.values():
        os.kill(pid, signal.SIGKILL)
    results = [texts(future.result()) for future in futures]
    assert results == expected
    assert [[token for sample, token in streamed if sample == index] for index in (0, 1)] == expected[0]
    assert set(both_workers(pair).values()).isdisjoint(workers.values())


@pytest.mark.timeout(1500)
def test_a_worker_killed_while_it_trains_changes_nothing(pair: EngineFront, tmp_path: Path) -> None:
    expected = files(train(pair, 4, tmp_path / "undisturbed")[1])
    workers = list(both_workers(pair).values())

    def kill(step: int) -> None:
        if step in (1, 2):
            os.kill(workers[step - 1], signal.SIGKILL)

    assert files(train(pair, 4, tmp_path / "disturbed", kill)[1]) == expected


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_worker_that_comes_back_has_the_policies(pair: EngineFront, tmp_path: Path) -> None:
    adapter = pair.create_adapter(LORA).result()
    pair.forward_backward(adapter, grpo_data(), IMPORTANCE).result()
    pair.optim_step(adapter, ADAM).result()
    policy = pair.snapshot(adapter).result()
    expected = texts(pair.sample(policy, request(5)).result())
    for _ in range(2):
        name, pid = next(iter(both_workers(pair).items()))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda name=name, pid=pid: pair.workers.get(name, pid) != pid)  # type: ignore[misc]
    both_workers(pair)
    samples = [pair.sample(policy, request(5)) for _ in range(6)]
    assert {str(texts(sample.result())) for sample in samples} == {str(expected)}
    assert pair.export(policy, tmp_path / "exported").result() > 0
    pair.drop_policy(policy)
    pair.drop_adapter(adapter)


def test_more_replicas_than_memory_are_refused_with_the_number_that_fits(folder: Path) -> None:
    with pytest.raises(EngineCapacityError, match="1000 replicas do not fit: each needs") as refused:
        EngineFront(options(folder), 1000)
    assert "Use --replicas" in refused.value.hint


def test_a_model_that_cannot_be_loaded_is_an_error_of_the_start(tmp_path: Path) -> None:
    with pytest.raises(EngineUserError, match="could not be loaded"):
        EngineFront(options(tmp_path), 2)
