"""On a GPU: graphs, kernels and the written-out training pass give what the plain CPU path gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.types import AdamParams, Datum, LoraConfig, Loss, SampleRequest, SamplingParams
from tests.engine.tiny import tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, 512, length) for length in (5, 17, 40, 40, 63, 130)]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, stop=())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(place)
    return place


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(EngineOptions(str(folder), "cuda", request.param, kv_bytes=1 << 24))
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Iterator[Engine]:
    made = Engine(EngineOptions(str(folder), "cpu", "float32", kv_bytes=1 << 24))
    made.start()
    yield made
    made.close()


def exact(engine: Engine) -> bool:
    return engine.dtype == torch.float32


def data(rng: np.random.Generator) -> list[Datum]:
    prompt = rng.integers(3, 512, 30)
    made = []
    for length in (8, 9, 20):
        tokens = np.concatenate([prompt, rng.integers(3, 512, length)])
        weights = np.concatenate([np.zeros(29), np.ones(length)]).astype(np.float32)
        made.append(Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights}))
    return made


def trained(engine: Engine, steps: int = 3) -> tuple[str, list[float]]:
    adapter = engine.create_adapter(LoraConfig(rank=4, seed=1)).result()
    losses = []
    for _ in range(steps):
        output = engine.forward_backward(
            adapter, data(np.random.default_rng(1)), Loss("cross_entropy")
        ).result()
        losses.append(output.metrics["loss:sum"])
        engine.optim_step(adapter, AdamParams(learning_rate=1e-2)).result()
    return adapter, losses


def greedy(engine: Engine, policy: str | None) -> list[list[int]]:
    futures = [engine.sample(policy, SampleRequest(prompt, GREEDY)) for prompt in PROMPTS]
    return [future.result().sequences[0].tokens.tolist() for future in futures]


def test_greedy_tokens_are_those_of_the_cpu(engine: Engine, reference: Engine) -> None:
    if not exact(engine):
        pytest.skip("in half precision near ties fall either way")
    assert greedy(engine, None) == greedy(reference, None)


def test_training_gives_the_losses_of_the_cpu(engine: Engine, reference: Engine) -> None:
    ours, theirs = trained(engine)[1], trained(reference)[1]
    assert ours == pytest.approx(theirs, rel=1e-4 if exact(engine) else 3e-2)


def test_a_trained_policy_gives_the_tokens_of_the_cpu_and_the_base_is_untouched(
    engine: Engine, reference: Engine
) -> None:
    if not exact(engine):
        pytest.skip("in half precision near ties fall either way")
    before = greedy(engine, None)
    policies = [made.snapshot(trained(made)[0]).result() for made in (engine, reference)]
    assert greedy(engine, policies[0]) == greedy(reference, policies[1])
    assert greedy(engine, None) == before


def test_sampler_and_trainer_agree_on_the_logprobs_of_what_was_sampled(engine: Engine) -> None:
    adapter, _ = trained(engine)
    policy = engine.snapshot(adapter).result()
    sampled = engine.sample(
        policy, SampleRequest(PROMPTS[2], SamplingParams(40, seed=3, stop=()), 8)
    ).result()
    gaps = []
    for sequence in sampled.sequences:
        tokens = np.concatenate([PROMPTS[2], sequence.tokens])
        inputs = {"target_tokens": tokens[1:], "weights": np.ones(len(tokens) - 1, np.float32)}
        output = engine.forward_backward(
            adapter, [Datum(tokens[:-1], inputs)], Loss("cross_entropy"), forward_only=True
        ).result()
        gaps.append(np.abs(output.logprobs[0][-len(sequence.tokens) :] - sequence.logprobs).max())
    assert max(gaps) < (1e-3 if exact(engine) else 0.3)


def test_several_adapters_in_one_batch_give_what_each_gives_alone(engine: Engine) -> None:
    policies = [None, *(engine.snapshot(trained(engine, steps)[0]).result() for steps in (2, 5))]
    alone = [greedy(engine, policy) for policy in policies]
    futures = [
        [engine.sample(policy, SampleRequest(prompt, GREEDY)) for prompt in PROMPTS] for policy in policies
    ]
    together = [[future.result().sequences[0].tokens.tolist() for future in line] for line in futures]
    same = sum(
        one == other for a, b in zip(alone, together, strict=True) for one, other in zip(a, b, strict=True)
    )
    assert same == 18 if exact(engine) else same >= 9


def test_a_seeded_request_repeats_whatever_runs_beside_it(engine: Engine) -> None:
    request = SampleRequest(PROMPTS[1], SamplingParams(30, seed=7, stop=()), 4)
    first = engine.sample(None, request).result()
    others = [
        engine.sample(None, SampleRequest(prompt, SamplingParams(50, stop=()), 16)) for prompt in PROMPTS
    ]
    again = engine.sample(None, request).result()
    for future in others:
        future.result()
    if exact(engine):
        assert [s.tokens.tolist() for s in first.sequences] == [s.tokens.tolist() for s in again.sequences]
    assert len({tuple(sequence.tokens.tolist()) for sequence in first.sequences}) == 4


def test_filtered_draws_and_alternatives_work_without_a_graph(engine: Engine) -> None:
    params = SamplingParams(12, temperature=0.8, top_k=5, top_p=0.9, seed=1, stop=())
    result = engine.sample(None, SampleRequest(PROMPTS[0], params, 3, topk_sample_logprobs=4)).result()
    for sequence in result.sequences:
        assert sequence.topk is not None and sequence.topk.ids.shape == (12, 4)
        assert np.isfinite(sequence.logprobs).all()


def test_graphs_are_captured_while_another_thread_copies_from_the_device(folder: Path) -> None:
    engine = Engine(EngineOptions(str(folder), "cuda", "bfloat16", kv_bytes=1 << 24))
    engine.start()
    done = threading.Event()

    def copy() -> None:
        while not done.is_set():
            torch.ones(1 << 20, device="cuda").cpu()

    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(copy)
        for rows in (1, 2, 4, 8, 16, 32, 48):  # a graph for each
            request = SampleRequest(PROMPTS[1], SamplingParams(6, seed=7, stop=()), rows)
            assert len(engine.sample(None, request).result().sequences) == rows
        done.set()
        copying.result()
    engine.close()
