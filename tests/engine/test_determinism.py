"""The same work gives the same bits, in half precision too: what was drawn, its logprobs, what was learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.types import AdamParams, Datum, Floats, LoraConfig, Loss, SampleRequest, SamplingParams
from tests.engine.sampling_parts import prompt
from tests.engine.tiny import tiny_model

SEEDED = SamplingParams(24, seed=7, stop=())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(place)
    return place


def start(folder: Path) -> Engine:
    engine = Engine(EngineOptions(str(folder), device="cpu", dtype="bfloat16", kv_bytes=1 << 24))
    engine.start()
    return engine


def sampled(engine: Engine, policy: str | None, size: int) -> list[Floats]:
    """Tokens and logprobs of four samples, as one list of arrays."""
    result = engine.sample(policy, SampleRequest(prompt(size), SEEDED, 4)).result()
    return [part for one in result.sequences for part in (one.tokens, one.logprobs)]


def same(one: list[Floats], other: list[Floats]) -> bool:
    return all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def everything(folder: Path) -> list[Floats]:
    """What a new engine gives for a little training and sampling."""
    engine = start(folder)
    adapter = engine.create_adapter(LoraConfig(rank=4, seed=1)).result()
    found: list[Floats] = []
    for step in range(2):
        texts = [np.concatenate([prompt(30), prompt(40, 10 * step + n)]) for n in range(4)]
        weights = np.ones(69, np.float32)
        data = [Datum(text[:-1], {"target_tokens": text[1:], "weights": weights}) for text in texts]
        found += engine.forward_backward(adapter, data, Loss("cross_entropy")).result().logprobs
        learnt = engine.optim_step(adapter, AdamParams(learning_rate=1e-2)).result()
        found.append(np.array(list(learnt.values()), np.float64))
    policy = engine.snapshot(adapter).result()
    for size in (20, 61):
        found += sampled(engine, policy, size) + sampled(engine, None, size)
    engine.close()
    return found


@pytest.mark.slow
def test_two_engines_give_the_same_bits_in_half_precision(folder: Path) -> None:
    assert same(everything(folder), everything(folder))


def test_a_request_that_finds_its_prompt_in_the_cache_gives_the_same_bits_each_time(folder: Path) -> None:
    engine = start(folder)
    sampled(engine, None, 100)
    second, third = sampled(engine, None, 100), sampled(engine, None, 100)
    engine.close()
    assert same(second, third)
