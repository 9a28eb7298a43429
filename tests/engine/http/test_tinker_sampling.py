"""Sampling through the public SDK: frozen weights, exact logprobs, seeds, stops, scoring, many at once."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types as tt

from hermes.engine.server.policies import MAX_IN_MEMORY
from tests.engine.http.engine_process import (
    EOS,
    FIRST_WORD,
    VOCAB,
    Server,
    batch,
    datum,
    logprobs,
    prompt,
    tokens,
)
from tests.waiting import wait_until

GREEDY = tt.SamplingParams(max_tokens=8, temperature=0.0, stop=[])
STEP = tt.AdamParams(learning_rate=1e-2)


def train(training: tinker.TrainingClient, steps: int = 1) -> None:
    for _ in range(steps):
        training.forward_backward(batch(2), "cross_entropy")
        training.optim_step(STEP).result()


@pytest.fixture
def sampler(client: tinker.ServiceClient, model: str) -> tinker.SamplingClient:
    return client.create_sampling_client(base_model=model)


def test_samples_of_one_seeded_request_differ_and_the_request_repeats(sampler: tinker.SamplingClient) -> None:
    params = tt.SamplingParams(max_tokens=12, seed=5, stop=[])
    first, second = (sampler.sample(prompt(), 4, params).result() for _ in range(2))
    assert [one.tokens for one in first.sequences] == [one.tokens for one in second.sequences]
    assert len({tuple(one.tokens) for one in first.sequences}) == 4
    assert len({one.sequence_id for one in first.sequences}) == 4
    other = sampler.sample(prompt(), 4, tt.SamplingParams(max_tokens=12, seed=6, stop=[])).result()
    assert [one.tokens for one in other.sequences] != [one.tokens for one in first.sequences]


def test_sampled_logprobs_are_what_the_trainer_computes(client: tinker.ServiceClient, model: str) -> None:
    training = client.create_lora_training_client(model, rank=4, seed=1)
    train(training, 3)
    sampler = training.save_weights_and_get_sampling_client()
    start = tokens(6)
    result = sampler.sample(
        tt.ModelInput.from_ints(start), 3, tt.SamplingParams(max_tokens=10, seed=1, stop=[])
    ).result()
    for sequence in result.sequences:
        whole = [*start, *sequence.tokens]
        (trained,) = logprobs(training.forward([datum(whole)], "cross_entropy").result())
        np.testing.assert_allclose(trained[len(start) - 1 :], sequence.logprobs, atol=1e-3)
        scored = sampler.compute_logprobs(tt.ModelInput.from_ints(whole)).result()
        assert scored[0] is None
        np.testing.assert_allclose(np.array(scored[1:], float), trained, atol=1e-3)


def test_temperature_top_k_and_top_p_shape_the_choice(sampler: tinker.SamplingClient) -> None:
    greedy = sampler.sample(prompt(), 1, GREEDY).result().sequences[0].tokens
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}):
        params = tt.SamplingParams(max_tokens=8, temperature=1.0, stop=[], seed=3, **narrow)
        assert sampler.sample(prompt(), 1, params).result().sequences[0].tokens == greedy
    hot = tt.SamplingParams(max_tokens=1, temperature=2.0, seed=3, stop=[])
    answer = sampler.sample(prompt(), 1, hot, topk_sample_logprobs=VOCAB).result().sequences[0]
    assert answer.logprobs is not None
    raw = sampler.sample(
        tt.ModelInput.from_ints([*prompt().to_ints(), answer.tokens[0]]),
        1,
        GREEDY,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=VOCAB,
    ).result()
    assert raw.topk_prompt_logprobs is not None and raw.topk_prompt_logprobs[-1] is not None
    plain = np.array([value for _, value in sorted(raw.topk_prompt_logprobs[-1])])
    tempered = plain / 2 - np.log(np.exp(plain / 2).sum())
    assert answer.logprobs[0] == pytest.approx(tempered[answer.tokens[0]], abs=1e-3)


def test_every_kind_of_stop(sampler: tinker.SamplingClient) -> None:
    free = sampler.sample(prompt(), 1, GREEDY).result().sequences[0]
    assert (len(free.tokens), free.stop_reason) == (8, "length")
    third = free.tokens[2]
    by_id = tt.SamplingParams(max_tokens=8, temperature=0.0, stop=[third])
    stopped = sampler.sample(prompt(), 1, by_id).result().sequences[0]
    assert stopped.stop_reason == "stop"
    assert stopped.tokens == free.tokens[: free.tokens.index(third) + 1]  # what matched stays
    word = next(token for token in free.tokens if token >= FIRST_WORD)
    text = sampler.get_tokenizer().decode([word])
    for stop in (text, ["never said", text[2:]]):
        by_text = tt.SamplingParams(max_tokens=8, temperature=0.0, stop=stop)
        stopped = sampler.sample(prompt(), 1, by_text).result().sequences[0]
        assert stopped.stop_reason == "stop"
        assert stopped.tokens == free.tokens[: free.tokens.index(word) + 1]


def test_the_end_of_sequence_stops_unless_nothing_may(client: tinker.ServiceClient, model: str) -> None:
    training = client.create_lora_training_client(model, rank=8, seed=0)
    say_it = [datum([*prompt().to_ints(), EOS, EOS, EOS])]
    for _ in range(30):
        training.forward_backward(say_it, "cross_entropy")
        training.optim_step(tt.AdamParams(learning_rate=3e-2))
    sampler = training.save_weights_and_get_sampling_client()
    ended = (
        sampler.sample(prompt(), 1, tt.SamplingParams(max_tokens=5, temperature=0.0)).result().sequences[0]
    )
    assert (ended.tokens, ended.stop_reason) == ([EOS], "stop")
    endless = tt.SamplingParams(max_tokens=5, temperature=0.0, stop=[])
    assert len(sampler.sample(prompt(), 1, endless).result().sequences[0].tokens) == 5


def test_an_answer_ends_where_the_context_does(sampler: tinker.SamplingClient) -> None:
    params = tt.SamplingParams(max_tokens=100, stop=[])
    (sequence,) = sampler.sample(prompt(250), 1, params).result().sequences
    assert (len(sequence.tokens), sequence.stop_reason) == (6, "length")


def test_prompt_scoring_of_every_kind(sampler: tinker.SamplingClient) -> None:
    ids = prompt(7).to_ints()
    targets = torch.full((6, 2), -1, dtype=torch.int64)
    targets[:, 0] = torch.tensor(ids[1:])
    targets[5, 1] = 17
    result = sampler.sample(
        prompt(7),
        2,
        tt.SamplingParams(max_tokens=2, seed=1, stop=[]),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=5,
        topk_sample_logprobs=3,
        target_prompt_logprobs=tt.TensorData.from_torch(targets),
        prompt_alt_tokens_k=4,
    ).result()
    scored = result.prompt_logprobs
    assert scored is not None and scored[0] is None and len(scored) == 7
    assert result.topk_prompt_logprobs is not None
    assert [None if row is None else len(row) for row in result.topk_prompt_logprobs] == [None] + [5] * 6
    assert all(one.topk_logprobs is not None and len(one.topk_logprobs) == 2 for one in result.sequences)
    assert result.target_prompt_logprobs is not None
    answer = result.target_prompt_logprobs.to_numpy()
    np.testing.assert_allclose(answer[:, 0], np.array(scored[1:], float), atol=1e-4)
    assert answer[5, 1] < 0
    assert (answer[:5, 1] == 0).all()
    assert result.prompt_alt_tokens is not None
    assert result.prompt_alt_tokens.tokens.to_numpy().shape == (6, 4)
    assert (result.prompt_alt_tokens.logprobs.to_numpy() < 0).all()


def test_sparse_targets_are_answered_in_their_own_layout(sampler: tinker.SamplingClient) -> None:
    ids = prompt(30).to_ints()
    targets = torch.full((29, 3), -1, dtype=torch.int64)
    targets[28, 1] = ids[29]
    sparse = tt.TensorData.from_torch_sparse(targets, pad_value=-1)
    assert sparse.sparse_crow_indices is not None
    result = sampler.sample(
        prompt(30),
        1,
        tt.SamplingParams(max_tokens=1),
        include_prompt_logprobs=True,
        target_prompt_logprobs=sparse,
    ).result()
    answer = result.target_prompt_logprobs
    assert answer is not None and answer.sparse_crow_indices == sparse.sparse_crow_indices
    assert result.prompt_logprobs is not None
    assert answer.to_numpy()[28, 1] == pytest.approx(result.prompt_logprobs[29], abs=1e-4)
    assert np.count_nonzero(answer.to_numpy()) == 1


def test_scoring_only_the_end_of_a_prompt_gives_the_same_numbers(sampler: tinker.SamplingClient) -> None:
    whole = sampler.compute_logprobs(prompt(12)).result()
    end = sampler.compute_logprobs(prompt(12), prompt_logprobs_last_n=3).result()
    assert end[:9] == [None] * 9
    assert end[9:] == pytest.approx(whole[9:], abs=1e-4)


def test_an_old_sampler_keeps_its_weights_and_sampling_it_leaves_training_alone(
    client: tinker.ServiceClient, model: str
) -> None:
    training = client.create_lora_training_client(model, rank=4, seed=3)
    train(training)
    named = training.save_weights_for_sampler("early").result().path
    old = training.save_weights_and_get_sampling_client()
    before = old.compute_logprobs(prompt(9)).result()
    train(training, 3)
    now = training.forward(batch(2), "cross_entropy").result().metrics["loss:sum"]
    reopened = client.create_sampling_client(model_path=named)
    for sampler in (old, reopened):
        assert sampler.compute_logprobs(prompt(9)).result()[1:] == pytest.approx(before[1:], abs=1e-5)
    new = training.save_weights_and_get_sampling_client().compute_logprobs(prompt(9)).result()
    assert max(abs(a - b) for a, b in zip(new[1:], before[1:], strict=True)) > 1e-2  # type: ignore[operator]
    assert training.forward(batch(2), "cross_entropy").result().metrics["loss:sum"] == pytest.approx(
        now, rel=1e-6
    )


def test_more_samplers_than_fit_in_memory_all_keep_answering(
    client: tinker.ServiceClient, model: str, shared: Server
) -> None:
    training = client.create_lora_training_client(model, rank=2, seed=3)
    samplers, answers = [], []
    for _ in range(MAX_IN_MEMORY + 4):
        train(training)
        samplers.append(training.save_weights_and_get_sampling_client())
        answers.append(samplers[-1].compute_logprobs(prompt(5)).result()[1:])
    wait_until(lambda: shared.metric("policies") <= MAX_IN_MEMORY)
    assert len({round(answer[-1] or 0, 6) for answer in answers}) == len(answers)
    for sampler, answer in zip(samplers, answers, strict=True):
        assert sampler.compute_logprobs(prompt(5)).result()[1:] == pytest.approx(answer, abs=1e-5)


async def test_a_hundred_samples_at_once_on_several_policies(
    client: tinker.ServiceClient, model: str
) -> None:
    training = await client.create_lora_training_client_async(model, rank=4, seed=3)
    samplers = [await client.create_sampling_client_async(base_model=model)]
    for _ in range(2):
        await (await training.forward_backward_async(batch(2), "cross_entropy"))
        await (await training.optim_step_async(STEP))
        samplers.append(await training.save_weights_and_get_sampling_client_async())
    alone = [(await sampler.sample_async(prompt(8), 1, GREEDY)).sequences[0].tokens for sampler in samplers]
    results = await asyncio.gather(
        *(samplers[index % 3].sample_async(prompt(8), 1, GREEDY) for index in range(102))
    )
    assert [result.sequences[0].tokens for result in results] == [alone[index % 3] for index in range(102)]
    scored = await samplers[0].compute_logprobs_async(prompt(8))
    assert len(scored) == 8


def _sample_elsewhere(pickled: bytes, answers: Any) -> None:
    sampler = pickle.loads(pickled)  # noqa: S301 - our own, from the parent
    answers.put(sampler.sample(prompt(8), 1, GREEDY).result().sequences[0].tokens)


@pytest.mark.slow
def test_a_sampler_works_in_another_process(sampler: tinker.SamplingClient) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=_sample_elsewhere, args=(pickle.dumps(sampler), answers))
    child.start()
    here = sampler.sample(prompt(8), 1, GREEDY).result().sequences[0].tokens
    assert answers.get(timeout=100) == here
    child.join()


def test_a_sampler_can_be_handed_on_as_text(sampler: tinker.SamplingClient) -> None:
    again = tinker.SamplingClient.from_sampler_handle(sampler.get_sampler_handle(), api_key="tml-x")
    here = sampler.sample(prompt(8), 1, GREEDY).result().sequences[0].tokens
    assert again.sample(prompt(8), 1, GREEDY).result().sequences[0].tokens == here


def test_a_sampler_says_what_it_samples(
    client: tinker.ServiceClient, model: str, rest: tinker.RestClient
) -> None:
    assert [one.model_name for one in client.get_server_capabilities().supported_models] == [model]
    training = client.create_lora_training_client(model, rank=2)
    path = training.save_weights_for_sampler("one").result().path
    both = training.create_sampling_client(path)
    assert both.get_base_model() == model
    described = rest.get_sampler(both._sampling_session_id).result()
    assert (described.base_model, described.model_path) == (model, path)


def test_an_abandoned_sample_stops(sampler: tinker.SamplingClient, shared: Server) -> None:
    endless = tt.SamplingParams(max_tokens=240, stop=[])
    abandoned = [sampler.sample(prompt(8), 8, endless) for _ in range(8)]
    for future in abandoned:
        future.cancel()
    wait_until(lambda: shared.metric("sampling_running") + shared.metric("sampling_waiting") == 0)
    wait_until(lambda: shared.metric("calls_pending") == 0)
