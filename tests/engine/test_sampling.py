from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hermes.engine.sampling.logits import SamplingTensors, derive_seed, sample_tokens, uniform

VOCAB = 700


def sampling(
    rows: int, temperature: float = 1.0, top_k: int = -1, top_p: float = 1.0, first_seed: int = 0
) -> SamplingTensors:
    return SamplingTensors(
        seeds=torch.tensor([derive_seed(7, first_seed + row) for row in range(rows)]),
        counts=torch.zeros(rows, dtype=torch.int64),
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p),
        greedy=temperature == 0,
        filtered=top_k > 0 or top_p < 1,
    )


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * 2


def test_tokens_are_drawn_as_often_as_the_tempered_distribution_says(logits: Tensor) -> None:
    rows = 40_000
    tokens, _ = sample_tokens(logits.repeat(rows, 1), sampling(rows, temperature=0.7))
    wanted = torch.softmax(logits / 0.7, -1)
    found = torch.bincount(tokens, minlength=VOCAB) / rows
    deviation = (found - wanted).abs() / (wanted * (1 - wanted) / rows).sqrt().clamp_min(1e-4)
    assert float(deviation.max()) < 5.5


def test_the_logprob_is_the_tempered_one_of_the_token_drawn(logits: Tensor) -> None:
    tokens, logprobs = sample_tokens(logits.repeat(500, 1), sampling(500, temperature=1.7))
    wanted = torch.log_softmax(logits / 1.7, -1)[tokens]
    assert torch.allclose(logprobs, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(1, 1.0), (5, 1.0), (-1, 0.9), (50, 0.5), (400, 0.6), (-1, 0.9999), (650, 1.0)]
)
def test_a_cut_distribution_keeps_the_likeliest_and_is_renormalised(
    logits: Tensor, top_k: int, top_p: float
) -> None:
    tokens, logprobs = sample_tokens(logits.repeat(3000, 1), sampling(3000, top_k=top_k, top_p=top_p))
    ranked, ids = torch.sort(logits, descending=True)
    ranked = ranked[: top_k if top_k > 0 else VOCAB]
    kept = int((torch.softmax(ranked, -1).cumsum(-1) < top_p).sum()) + 1
    table = dict(zip(ids[:kept].tolist(), torch.log_softmax(ranked[:kept], -1).tolist(), strict=True))
    assert set(tokens.tolist()) <= set(table)
    assert np.allclose(logprobs.numpy(), [table[token] for token in tokens.tolist()], atol=1e-4)
    likely = [token for token, logprob in table.items() if logprob > -4]
    assert set(likely) <= set(tokens.tolist())


def test_rows_with_and_without_a_cut_share_a_batch(logits: Tensor) -> None:
    some = sampling(400)
    top_k = torch.where(torch.arange(400) % 2 == 0, 3, -1)
    mixed = SamplingTensors(
        some.seeds, some.counts, some.temperature, top_k, some.top_p, greedy=False, filtered=True
    )
    tokens, _ = sample_tokens(logits.repeat(400, 1), mixed)
    plain, _ = sample_tokens(logits.repeat(400, 1), some)
    assert torch.equal(tokens[1::2], plain[1::2])
    assert len(set(tokens[::2].tolist())) <= 3 < len(set(tokens[1::2].tolist()))


def test_temperature_zero_is_the_likeliest_token_with_its_plain_logprob(logits: Tensor) -> None:
    tokens, logprobs = sample_tokens(logits.repeat(4, 1), sampling(4, temperature=0.0))
    assert tokens.tolist() == [int(logits.argmax())] * 4
    assert torch.allclose(logprobs, torch.log_softmax(logits, -1).max().expand(4), atol=1e-5)


def test_a_row_draws_the_same_whatever_its_neighbours() -> None:
    table = torch.randn(64, VOCAB, generator=torch.Generator().manual_seed(2))
    together, logprobs = sample_tokens(table.clone(), sampling(64))
    for row in (0, 17, 63):
        alone, logprob = sample_tokens(table[row : row + 1].clone(), sampling(1, first_seed=row))
        assert int(alone) == int(together[row])
        assert float(logprob) == float(logprobs[row])


def test_impossible_tokens_are_never_drawn() -> None:
    table = torch.full((5000, VOCAB), float("-inf"))
    table[:, [3, 699]] = 0.0
    tokens, logprobs = sample_tokens(table, sampling(5000))
    assert set(tokens.tolist()) == {3, 699}
    assert torch.allclose(logprobs, torch.full((5000,), -np.log(2).item()), atol=1e-6)


def test_noise_depends_on_seed_and_count_alone_and_is_even() -> None:
    seeds = torch.arange(200_000)
    first = uniform(seeds, torch.zeros_like(seeds))
    assert torch.equal(first, uniform(seeds, torch.zeros_like(seeds)))
    assert not torch.equal(first, uniform(seeds, torch.ones_like(seeds)))
    assert float(first.min()) >= 0 and float(first.max()) < 1
    counts = torch.histc(first.float(), bins=20, min=0, max=1)
    assert float((counts - 10_000).abs().max()) < 500


def test_samples_of_one_seed_have_different_seeds_of_64_bits() -> None:
    found = [derive_seed(seed, index) for seed in (0, 1, 2**63, -5) for index in range(-3, 500)]
    assert len(set(found)) == len(found)
    assert all(-(2**63) <= one < 2**63 for one in found)
