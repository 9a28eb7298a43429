"""Weights that give NaN fail their own requests in words, and leave nothing that harms a neighbour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.lora.weights import Policy
from hermes.engine.sampling.logits import SamplingTensors, sample_tokens
from hermes.engine.types import NotFiniteError
from tests.engine.sampling_parts import Bench, prompt


def broken(bench: Bench, name: str = "broken") -> Policy:
    """A policy whose training went wrong."""
    policy = bench.policy(name, seed=3)
    assert policy.weights is not None
    for group in policy.weights.groups.values():
        group.a.fill_(torch.nan)
    return policy


ASKED: dict[str, dict[str, Any]] = {
    "sampling": {"max_tokens": 20, "num_samples": 3},
    "greedy": {"max_tokens": 20, "temperature": 0.0},
    "top-p": {"max_tokens": 20, "top_p": 0.9, "top_k": 20},
    "prompt logprobs": {"max_tokens": 0, "prompt_logprobs": True},
    "nothing": {"max_tokens": 0},
}


@pytest.mark.parametrize("wish", ASKED.values(), ids=ASKED)
def test_the_request_fails_in_words_and_its_neighbours_get_what_they_get_alone(wish: dict[str, Any]) -> None:
    bench = Bench(kv_tokens=64 * 8)
    wishes: list[dict[str, Any]] = [
        {"prompt": prompt(5 + 9 * n, n), "max_tokens": 4 + 5 * n, "seed": n} for n in range(5)
    ]
    sick = bench.ask(prompt(40, 9), broken(bench), **wish)
    jobs = [bench.ask(**one) for one in wishes]
    while bench.sampler.busy:
        bench.sampler.step()
    with pytest.raises(NotFiniteError, match="not finite"):
        sick.future.result(timeout=0)
    later = [bench.ask(**one) for one in wishes]  # in whatever slots the sick one left
    for one, *found in zip(wishes, bench.run(*jobs), bench.run(*later), strict=True):
        alone = Bench().sample(**one).sequences[0]
        for result in found:
            assert result.sequences[0].tokens.tolist() == alone.tokens.tolist()
            assert np.allclose(result.sequences[0].logprobs, alone.logprobs, atol=1e-4)


def test_no_slot_that_is_free_or_kept_holds_anything_that_is_not_finite() -> None:
    bench = Bench(kv_tokens=64 * 8)
    bench.ask(prompt(200, 1), broken(bench, "one"), max_tokens=50)
    half_way = bench.ask(prompt(200, 2), broken(bench, "two"), max_tokens=50)
    bench.sampler.step()
    assert half_way.future.cancel()
    bench.sampler.end_cancelled(half_way.future)
    while bench.sampler.busy:
        bench.sampler.step()
    assert bench.pool.keys.isfinite().all() and bench.pool.values.isfinite().all()
    assert bench.sampler.kv_tokens_used == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_new_pool_is_zeros_whatever_lay_in_memory(dtype: torch.dtype) -> None:
    spec = Bench().backbone.spec
    shape = (spec.layers, 4096, spec.kv_heads, spec.head_dim)
    for _ in range(3):
        used = [torch.full(shape, torch.nan, dtype=dtype) for _ in range(2)]
        del used
        pool = KvPool(spec, 4096, torch.device("cpu"), dtype)
        assert pool.keys.shape == shape and pool.keys.dtype == dtype
        assert not pool.keys.any() and not pool.values.any()


def test_a_row_of_nan_spoils_no_other_row_of_the_draw() -> None:
    def rows(change: Callable[[torch.Tensor], object]) -> tuple[list[int], list[float]]:
        logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
        change(logits[1])
        sampling = SamplingTensors(
            seeds=torch.tensor([1, 2, 3]),
            counts=torch.zeros(3, dtype=torch.int64),
            temperature=torch.ones(3),
            top_k=torch.zeros(3, dtype=torch.int64),
            top_p=torch.ones(3),
            greedy=False,
            filtered=False,
        )
        tokens, logprobs = sample_tokens(logits, sampling)
        return tokens.tolist(), logprobs.tolist()

    whole = rows(lambda row: None)
    for bad in (torch.nan, torch.inf):
        tokens, logprobs = rows(lambda row, bad=bad: row[500:].fill_(bad))  # type: ignore[misc]
        assert [tokens[0], tokens[2]] == [whole[0][0], whole[0][2]] and 0 <= tokens[1] < 1000
        assert [logprobs[0], logprobs[2]] == [whole[1][0], whole[1][2]] and np.isnan(logprobs[1])
