"""Training of a long sequence pauses between layers: others sample meanwhile, and no gradient changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hermes.engine import compute
from hermes.engine.engine import Engine
from hermes.engine.info import EngineClosedError, EngineOptions
from hermes.engine.types import (
    Datum,
    EngineUserError,
    Floats,
    Ints,
    LoraConfig,
    Loss,
    SampleRequest,
    SamplingParams,
)
from tests.engine.sampling_parts import prompt, tiny_tokenizer
from tests.engine.tiny import tiny_model

CROSS_ENTROPY = Loss("cross_entropy")
SMALL = SampleRequest(prompt(20, 42), SamplingParams(max_tokens=3, stop=(), temperature=0.0))
LENGTHS = (400, 3000)
"""The longer one is over the budget of a micro-batch, so that its layers are recomputed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    tiny_model(max_position_embeddings=4096).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Every layer is a pause, and turns are divided by processor time: other processes do not change them."""
    monkeypatch.setattr(compute, "_PAUSE_S", 0.0)
    monkeypatch.setattr(compute, "time", SimpleNamespace(perf_counter=time.thread_time))
    torch.set_num_threads(1)
    engine = Engine(EngineOptions(str(folder), device="cpu", dtype="float32", kv_bytes=64 << 20))
    engine.start()
    yield engine
    engine.close()


def datum(tokens: Ints) -> Datum:
    weights = np.ones(len(tokens) - 1, np.float32)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights})


def gradient(engine: Engine, adapter: str, length: int) -> tuple[Floats, Floats]:
    """Logprobs and the gradient of one sequence."""
    data = [datum(prompt(length, 5))]
    output, flat = engine.compute_gradient(adapter, None, data, CROSS_ENTROPY).result()
    assert flat is not None
    return output.logprobs[0], flat


@pytest.mark.parametrize("length", LENGTHS)
def test_requests_are_sampled_within_one_pass_and_change_nothing(engine: Engine, length: int) -> None:
    adapter = engine.create_adapter(LoraConfig(rank=4, seed=1)).result()
    quiet = gradient(engine, adapter, length)
    alone = engine.sample(None, SMALL).result().sequences[0]
    ended: list[str] = []
    samples: list[Future[Any]] = []
    training: list[Future[Any]] = []

    def begin(*token: object) -> None:
        """In the compute thread, so that training and the first request of the chain arrive together."""
        if not training:
            training.append(engine.compute_gradient(adapter, None, [datum(prompt(length, 5))], CROSS_ENTROPY))
            training[0].add_done_callback(lambda _: ended.append("training"))
            sample()

    def sample() -> None:
        samples.append(engine.sample(None, SMALL))
        samples[-1].add_done_callback(sample_again)

    def sample_again(future: Future[Any]) -> None:
        """A request follows the other until training is done: each is the only one that waits."""
        ended.append("sample")
        if not training[0].done():
            sample()

    engine.sample(None, SampleRequest(SMALL.prompt, SMALL.params, on_token=begin)).result()
    output, flat = training[0].result()
    assert ended.index("training") >= 2, "samples came between the layers of one micro-batch"
    assert flat is not None
    assert np.array_equal(output.logprobs[0], quiet[0]) and np.array_equal(flat, quiet[1])
    for future in samples:
        assert np.array_equal(future.result().sequences[0].tokens, alone.tokens)
        # A prompt that was computed before is read from the cache, which is not equal to the last bit.
        assert future.result().sequences[0].logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_an_adapter_that_is_dropped_meanwhile_ends_its_pass(engine: Engine) -> None:
    doomed, kept = (engine.create_adapter(LoraConfig(rank=4, seed=seed)).result() for seed in (1, 2))
    training = engine.forward_backward(doomed, [datum(prompt(3000, 5))], CROSS_ENTROPY)
    waiting = engine.forward_backward(doomed, [datum(prompt(30, 5))], CROSS_ENTROPY)
    request = SampleRequest(SMALL.prompt, SMALL.params, on_token=lambda *_: engine.drop_adapter(doomed))
    sampled = engine.sample(None, request)
    for future in (training, waiting):
        with pytest.raises(EngineUserError, match="was dropped"):
            future.result(timeout=60)
    assert len(sampled.result().sequences[0].tokens) == 3
    assert engine.forward_backward(kept, [datum(prompt(30, 5))], CROSS_ENTROPY).result().logprobs
    assert engine.stats().trained_tokens == 29


def test_closing_ends_a_pass_between_two_layers(engine: Engine) -> None:
    adapter = engine.create_adapter(LoraConfig(rank=4)).result()
    training = engine.forward_backward(adapter, [datum(prompt(3000, 5))] * 20, CROSS_ENTROPY)
    engine.sample(None, SMALL).result()
    engine.close()
    with pytest.raises(EngineClosedError):
        training.result(timeout=0)
