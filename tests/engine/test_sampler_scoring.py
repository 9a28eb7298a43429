"""Scores of the prompt itself: against one full forward pass of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hermes.engine.sampling import prompt_logprobs
from hermes.engine.types import EngineUserError
from tests.engine.sampling_parts import Bench, count_prefilled, prompt

ASKED = prompt(90)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="module")
def table(bench: Bench) -> torch.Tensor:
    return torch.log_softmax(bench.logits(ASKED), -1)


def own(table: torch.Tensor) -> Any:
    return table[:-1].gather(1, torch.from_numpy(ASKED[1:])[:, None])[:, 0].numpy()


def test_prompt_logprobs_are_at_temperature_1_and_undefined_at_the_first(
    bench: Bench, table: torch.Tensor
) -> None:
    found = bench.sample(ASKED, prompt_logprobs=True, temperature=0.3, max_tokens=1).prompt_logprobs
    assert found is not None and len(found) == 90 and np.isnan(found[0])
    assert np.abs(found[1:] - own(table)).max() < 1e-4


def test_only_the_last_are_scored_and_the_rest_comes_from_the_cache(table: torch.Tensor) -> None:
    bench = Bench()
    bench.sample(ASKED, max_tokens=1)
    counted = count_prefilled(bench)
    result = bench.sample(
        ASKED, prompt_logprobs=True, prompt_logprobs_last_n=7, topk_prompt_logprobs=3, max_tokens=1
    )
    assert sum(counted) == 8 and result.cached_tokens == 82
    assert result.prompt_logprobs is not None and result.topk_prompt is not None
    assert np.isnan(result.prompt_logprobs[:83]).all()
    assert np.abs(result.prompt_logprobs[83:] - own(table)[82:]).max() < 1e-4
    assert (result.topk_prompt.logprobs[:83] == -99999).all() and (result.topk_prompt.ids[:83] == 0).all()
    assert result.topk_prompt.ids[83:].tolist() == table[82:-1].topk(3).indices.tolist()


def test_nothing_is_taken_from_the_cache_that_has_to_be_scored() -> None:
    bench = Bench()
    bench.sample(ASKED, max_tokens=1)
    result = bench.sample(ASKED, prompt_logprobs=True, max_tokens=1)
    assert result.cached_tokens == 0
    assert result.prompt_logprobs is not None and not np.isnan(result.prompt_logprobs[1:]).any()


def test_top_k_of_the_prompt_has_a_row_a_token(bench: Bench, table: torch.Tensor) -> None:
    found = bench.sample(ASKED, topk_prompt_logprobs=6, max_tokens=1).topk_prompt
    best = table[:-1].topk(6)
    assert found is not None and found.ids.shape == (90, 6)
    assert (found.logprobs[0] == -99999).all()
    assert np.allclose(found.logprobs[1:], best.values, atol=1e-4)
    named = table[:-1].gather(1, torch.from_numpy(found.ids[1:]))
    assert np.allclose(named, best.values, atol=1e-4), "of two as likely as each other either may come first"
    assert all(len(set(row)) == 6 for row in found.ids[1:].tolist())


def test_named_tokens_are_scored_where_they_are_named(table: torch.Tensor) -> None:
    bench = Bench()
    bench.sample(ASKED, max_tokens=1)
    targets = np.full((89, 3), -1)
    targets[40, 1], targets[60] = 7, (500, 0, 7)
    result = bench.sample(ASKED, target_prompt_logprobs=targets, max_tokens=1)
    assert result.cached_tokens == 40, "rows before the first that names a token are not computed"
    found = result.target_prompt_logprobs
    assert found is not None and found.shape == targets.shape
    assert (found[targets < 0] == 0).all()
    assert np.allclose(found[60], table[60, [500, 0, 7]], atol=1e-4)
    assert abs(found[40, 1] - float(table[40, 7])) < 1e-4


def test_alternatives_are_draws_at_the_requests_temperature_with_the_models_logprob(
    bench: Bench, table: torch.Tensor
) -> None:
    found = bench.sample(ASKED, prompt_alt_tokens_k=40, temperature=0.5, seed=1, max_tokens=1).alt_tokens
    again = bench.sample(ASKED, prompt_alt_tokens_k=40, temperature=0.5, seed=1, max_tokens=1).alt_tokens
    assert found is not None and again is not None and found.ids.shape == (89, 40)
    assert np.array_equal(found.ids, again.ids)
    assert np.allclose(found.logprobs, table[:-1].gather(1, torch.from_numpy(found.ids)), atol=1e-4)
    sharp = torch.softmax(2 * table[:-1], -1)
    likely = (found.ids == sharp.argmax(-1)[:, None].numpy()).mean()
    assert abs(likely - float(sharp.max(-1).values.mean())) < 0.05
    greedy = bench.sample(ASKED, prompt_alt_tokens_k=2, temperature=0.0, max_tokens=1).alt_tokens
    assert greedy is not None and greedy.ids[:, 1].tolist() == table[:-1].argmax(-1).tolist()


def test_logits_are_made_a_few_positions_at_a_time(
    monkeypatch: pytest.MonkeyPatch, table: torch.Tensor
) -> None:
    monkeypatch.setattr(prompt_logprobs, "_MAX_LOGITS", 5 * 512)
    found = Bench().sample(ASKED, prompt_logprobs=True, max_tokens=1, num_samples=2).prompt_logprobs
    assert found is not None and np.abs(found[1:] - own(table)).max() < 1e-4


def test_no_tokens_need_be_sampled(bench: Bench) -> None:
    result = bench.sample(ASKED, prompt_logprobs=True, max_tokens=0, num_samples=3)
    assert [len(one.tokens) for one in result.sequences] == [0, 0, 0]
    assert result.prompt_logprobs is not None and not np.isnan(result.prompt_logprobs[1:]).any()


def test_a_prompt_of_one_token_has_nothing_to_score(bench: Bench) -> None:
    result = bench.sample(ASKED[:1], prompt_logprobs=True, topk_prompt_logprobs=2, max_tokens=1)
    assert result.prompt_logprobs is not None and np.isnan(result.prompt_logprobs).tolist() == [True]


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"prompt_logprobs_last_n": 5}, "prompt_logprobs"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 90}, "1 to 89"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 0}, "1 to 89"),
        ({"topk_prompt_logprobs": 513}, "0 to 512"),
        ({"topk_sample_logprobs": -1}, "0 to 512"),
        ({"prompt_alt_tokens_k": 100_000}, "more than"),
        ({"target_prompt_logprobs": np.zeros((90, 2), np.int64)}, r"\[89, K\]"),
        ({"target_prompt_logprobs": np.full((89, 2), 512)}, "vocabulary"),
        ({"target_prompt_logprobs": np.zeros((89, 2), np.float32)}, "token ids"),
        ({"num_samples": 0}, "num_samples"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_wrong_wishes_are_refused_with_the_reason(bench: Bench, wish: dict[str, Any], why: str) -> None:
    with pytest.raises(EngineUserError, match=why):
        bench.ask(ASKED, **wish)


@pytest.mark.parametrize("tokens", [[], [600], [-1], [[1, 2]], [0.5]])
def test_wrong_prompts_are_refused(bench: Bench, tokens: list[Any]) -> None:
    with pytest.raises(EngineUserError, match="prompt"):
        bench.ask(np.array(tokens))
