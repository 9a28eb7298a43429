"""On a GPU: graphs, kernels and the manual training pass give the same results as the plain CPU path."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.types import (
    AdamParams,
    Datum,
    EngineCapacityError,
    EngineUserError,
    Floats,
    Ints,
    LoraConfig,
    Loss,
    SampledSequence,
    SampleRequest,
    SamplingParams,
)
from tests.engine.attention_parts import check_blocks
from tests.engine.tiny import tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(3, 512, length) for length in (5, 17, 40, 40, 63, 130)]
DTYPES = ("float32", "bfloat16")
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, stop=())


def start(folder: Path, device: str, dtype: str) -> Engine:
    made = Engine(EngineOptions(str(folder), device, dtype, kv_bytes=1 << 24))
    made.start()
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(place)
    return place


@pytest.fixture(scope="module", params=DTYPES)
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with closing(start(folder, "cuda", request.param)) as made:
        yield made


@pytest.fixture(scope="module")
def reference(folder: Path) -> Iterator[Engine]:
    with closing(start(folder, "cpu", "float32")) as made:
        yield made


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
        text = learnable(np.concatenate([PROMPTS[2], sequence.tokens]))
        output = engine.forward_backward(adapter, [text], Loss("cross_entropy"), forward_only=True).result()
        gaps.append(np.abs(output.logprobs[0][-len(sequence.tokens) :] - sequence.logprobs).max())
    assert max(gaps) < 1e-3


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral-window"])
def test_exact_sampler_and_trainer_agree_bit_for_bit(family: str, tmp_path: Path) -> None:
    tiny_model(family).save_pretrained(tmp_path)
    options = EngineOptions(str(tmp_path), "cuda", "bfloat16", kv_bytes=1 << 24, exact=True)
    with closing(Engine(options)) as engine:
        engine.start()
        adapter, _ = trained(engine)
        policy = engine.snapshot(adapter).result()
        params = SamplingParams(40, seed=3, stop=())
        futures = [(prompt, engine.sample(policy, SampleRequest(prompt, params, 8))) for prompt in PROMPTS]
        sampled = [(prompt, sequence) for prompt, future in futures for sequence in future.result().sequences]
        texts = [learnable(np.concatenate([prompt, sequence.tokens])) for prompt, sequence in sampled]
        for batch in (texts, texts[:1]):  # whatever is beside a sequence
            output = engine.forward_backward(
                adapter, batch, Loss("cross_entropy"), forward_only=True
            ).result()
            for (_, sequence), logprobs in zip(sampled, output.logprobs, strict=False):
                assert np.array_equal(logprobs[-len(sequence.tokens) :], sequence.logprobs)


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


def test_a_captured_prefill_has_the_bits_of_one_that_is_not(folder: Path) -> None:
    """Prompts of up to 64 tokens together are rows of a captured step; more are computed in blocks."""
    prompts = [RNG.integers(3, 512, length) for length in (2, 7, 31, 64, 65, 200)]
    requests = [SampleRequest(prompt, SamplingParams(1), prompt_logprobs=True) for prompt in prompts]
    with closing(
        Engine(EngineOptions(str(folder), "cuda", "bfloat16", kv_bytes=1 << 24, exact=True))
    ) as engine:
        engine.start()
        policy = engine.snapshot(trained(engine)[0]).result()
        alone = [engine.sample(policy, request).result().prompt_logprobs for request in requests]
        futures = [engine.sample(policy, request) for request in requests]
        together = [future.result().prompt_logprobs for future in futures]
    for first, second in zip(alone, together, strict=True):
        assert first is not None and second is not None
        np.testing.assert_array_equal(first, second)


def test_filtered_draws_and_those_beside_them_are_those_of_the_cpu(engine: Engine, reference: Engine) -> None:
    params = SamplingParams(12, temperature=0.8, top_k=5, top_p=0.9, seed=1, stop=())
    request = SampleRequest(PROMPTS[0], params, 3, topk_sample_logprobs=4)
    beside = SampleRequest(PROMPTS[1], SamplingParams(20, seed=2, stop=()), 5)
    sides = []
    for made in (engine, reference):
        futures = [made.sample(None, one) for one in (beside, request)]
        sides.append([one for future in futures for one in future.result().sequences])
    for one, other in zip(*sides, strict=True):
        assert one.topk is None or (one.topk.ids.shape == (12, 4) and np.isfinite(one.logprobs).all())
        assert not exact(engine) or one.tokens.tolist() == other.tokens.tolist()


def test_graphs_are_captured_while_another_thread_copies_from_the_device(folder: Path) -> None:
    engine = start(folder, "cuda", "bfloat16")
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


def scored(engine: Engine, policy: str | None, prompt: Ints, sequence: SampledSequence) -> Floats:
    """What this engine says about tokens that another one drew."""
    request = SampleRequest(
        np.concatenate([prompt, sequence.tokens]), SamplingParams(1), prompt_logprobs=True
    )
    found = engine.sample(policy, request).result().prompt_logprobs
    assert found is not None
    return found[len(prompt) :]


HEADS_OF_256 = {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.mark.parametrize(
    ("family", "dtype", "changes"),
    [
        *((family, dtype, {}) for family in ("qwen3", "gemma") for dtype in DTYPES),
        *(("llama", dtype, HEADS_OF_256) for dtype in DTYPES),
        ("mistral-window", "float32", {}),
        ("qwen2", "bfloat16", {}),
    ],
)
def test_every_family_draws_under_the_logprobs_of_the_cpu_with_an_adapter_and_without(
    family: str, dtype: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    tiny_model(family, **changes).save_pretrained(tmp_path / "model")
    with (
        closing(start(tmp_path / "model", "cuda", dtype)) as ours,
        closing(start(tmp_path / "model", "cpu", dtype)) as theirs,
    ):
        learnt = ours.snapshot(trained(ours)[0]).result()
        ours.export(learnt, tmp_path / "adapter").result()
        policies = {None: None, learnt: theirs.load_policy(tmp_path / "adapter").result()}
        gaps = []
        for policy, same in policies.items():
            drawn = ours.sample(policy, SampleRequest(PROMPTS[2], SamplingParams(24, seed=3, stop=()), 4))
            for one in drawn.result().sequences:
                gaps.append(np.abs(scored(theirs, same, PROMPTS[2], one) - one.logprobs))
    assert np.max(gaps) < (1e-3 if dtype == "float32" else 0.3)
    assert np.mean(gaps) < (1e-4 if dtype == "float32" else 0.03)


def test_heads_that_the_kernels_cannot_take_are_refused_at_once(tmp_path: Path) -> None:
    tiny_model(num_attention_heads=32, num_key_value_heads=1, head_dim=8).save_pretrained(tmp_path)
    with pytest.raises(EngineUserError, match="32 query heads"):
        start(tmp_path, "cuda", "bfloat16")


def learnable(text: Ints) -> Datum:
    return Datum(text[:-1], {"target_tokens": text[1:], "weights": np.ones(len(text) - 1, np.float32)})


def everything(folder: Path, dtype: str) -> list[Any]:
    """What a new engine learns from texts of many blocks of keys, and draws before and after."""
    rng, request = np.random.default_rng(2), SampleRequest(PROMPTS[4], SamplingParams(40, seed=7, stop=()), 4)
    tails = [rng.integers(3, 512, length) for length in (50, 250, 380, 380)]
    batch = [learnable(np.concatenate([PROMPTS[5], tail])) for tail in tails]
    with closing(start(folder, "cuda", dtype)) as engine:
        adapter = engine.create_adapter(LoraConfig(rank=4, seed=1)).result()
        found: list[Any] = []
        for _ in range(4):
            output = engine.forward_backward(adapter, batch, Loss("cross_entropy")).result()
            found += [one.tolist() for one in output.logprobs]
            metrics = engine.optim_step(adapter, AdamParams(learning_rate=1e-2)).result()
            found.append({name: value for name, value in metrics.items() if name != "peak_bytes"})
        for policy in (None, engine.snapshot(adapter).result()):
            for _ in range(2):  # computed, and then from the cache
                drawn = engine.sample(policy, request).result()
                found += [(one.tokens.tolist(), one.logprobs.tolist()) for one in drawn.sequences]
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_engines_learn_and_draw_the_same_bits(family: str, dtype: str, tmp_path: Path) -> None:
    tiny_model(family).save_pretrained(tmp_path)
    first = everything(tmp_path, dtype)
    assert everything(tmp_path, dtype) == everything(tmp_path, dtype) == first


@pytest.mark.parametrize("chunk", [64, 128])
def test_queries_in_blocks_have_the_bits_of_queries_one_by_one(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes.engine.kernels.attention._CHUNK", chunk)
    check_blocks(torch.device("cuda"), torch.bfloat16)


@contextmanager
def no_more_memory_than(extra_bytes: int) -> Iterator[None]:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + extra_bytes) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_short_of_memory_policies_sample_and_only_what_cannot_be_done_fails(tmp_path: Path) -> None:
    tiny_model(vocab_size=500_000, tie_word_embeddings=True).save_pretrained(tmp_path)  # 64 MB in bf16
    params = SamplingParams(8, seed=1, stop=())
    with closing(start(tmp_path, "cuda", "bfloat16")) as engine:
        adapter = engine.create_adapter(LoraConfig(rank=4, seed=1)).result()
        policy = engine.snapshot(adapter).result()
        engine.sample(None, SampleRequest(PROMPTS[0], params)).result()
        with no_more_memory_than(48 << 20):  # no copy of the matrix fits, and none is made
            futures = [engine.sample(one, SampleRequest(PROMPTS[0], params, 2)) for one in (policy, None)]
            drawn = [len(one.tokens) for future in futures for one in future.result().sequences]
            large = [learnable(RNG.integers(3, 512, 400))]
            error = engine.forward_backward(adapter, large, Loss("cross_entropy")).exception()
            assert isinstance(error, EngineCapacityError)
        assert drawn == [8] * 4
        assert len(trained(engine, 1)[1]) == 1


def gaps_of_many(engine: Engine, count: int, seed: int) -> Floats:
    """|sampler - trainer| at every token that so many policies sample together.

    Ranks, prompts, numbers of rows and lengths are drawn, so that rows join and leave all the time. Every
    second sequence fills its slot of the pool to the last index.
    """
    rng = np.random.default_rng(seed)
    adapters = []
    for number in range(count):
        config = LoraConfig(rank=int(rng.choice([4, 8, 16, 32])), seed=number, train_unembed=bool(number % 2))
        adapters.append(engine.create_adapter(config).result())
        engine.forward_backward(adapters[-1], data(rng), Loss("cross_entropy")).result()
        engine.optim_step(adapters[-1], AdamParams(learning_rate=1e-2)).result()
    requests = []
    for _ in range(3):
        for number in rng.permutation(count):
            policy = engine.snapshot(adapters[number]).result()
            tokens = int(rng.integers(1, 40))
            length = int(rng.choice([64, 96])) + 1 - tokens if number % 2 else int(rng.integers(1, 100))
            prompt = rng.integers(3, 512, length)
            params = SamplingParams(tokens, seed=int(rng.integers(1 << 30)), stop=())
            request = SampleRequest(prompt, params, int(rng.integers(1, 5)))
            requests.append((adapters[number], prompt, engine.sample(policy, request)))
    gaps = []
    for adapter, prompt, future in requests:
        sequences = future.result().sequences
        texts = [learnable(np.concatenate([prompt, sequence.tokens])) for sequence in sequences]
        output = engine.forward_backward(adapter, texts, Loss("cross_entropy"), forward_only=True).result()
        for sequence, logprobs in zip(sequences, output.logprobs, strict=True):
            gaps.append(np.abs(logprobs[-len(sequence.tokens) :] - sequence.logprobs))
    return np.concatenate(gaps)


@pytest.mark.parametrize("count", [1, 3, 4, 64])
@pytest.mark.parametrize("how", ["default", "exact", "nf4", "int8", "nf4, exact"])
def test_sampler_and_trainer_agree_whatever_the_number_of_policies(
    how: str, count: int, tmp_path: Path
) -> None:
    seed = secrets.randbelow(1 << 30)
    print("seed", seed)
    tiny_model("llama").save_pretrained(tmp_path)
    quantize = how.split(",")[0] if how.startswith(("nf4", "int8")) else None
    options = EngineOptions(
        str(tmp_path), "cuda", "bfloat16", kv_bytes=1 << 26, exact="exact" in how, quantize=quantize,
        max_adapters=64,
    )  # fmt: skip
    with closing(Engine(options)) as engine:
        engine.start()
        gaps = gaps_of_many(engine, count, seed)
    assert gaps.max() == 0 if "exact" in how else gaps.mean() < 1e-5


def test_a_rank_above_those_before_is_captured_anew(engine: Engine) -> None:
    """The buffers of a captured step are as wide as the highest rank so far."""
    prompt, params = PROMPTS[2], SamplingParams(12, seed=3, stop=())
    for rank in (4, 40, 8):
        adapter = engine.create_adapter(LoraConfig(rank=rank, seed=1)).result()
        engine.forward_backward(adapter, data(np.random.default_rng(1)), Loss("cross_entropy")).result()
        engine.optim_step(adapter, AdamParams(learning_rate=1e-2)).result()
        policy = engine.snapshot(adapter).result()
        (sequence,) = engine.sample(policy, SampleRequest(prompt, params)).result().sequences
        text = learnable(np.concatenate([prompt, sequence.tokens]))
        output = engine.forward_backward(adapter, [text], Loss("cross_entropy"), forward_only=True).result()
        assert np.abs(output.logprobs[0][-12:] - sequence.logprobs).max() < 1e-3
