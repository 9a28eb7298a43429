from __future__ import annotations

import pytest

from hermes.core import Sampling, TokenTrace, Usage, explicit_sampling
from hermes.errors import ProviderError
from tests.fakes.provider import FakeProvider, Reply, raw, status, text, tokens
from tests.models.clients import completions_on, limited_to


async def test_ids_go_in_and_sampled_ids_and_logprobs_come_out() -> None:
    with FakeProvider(
        [tokens([7, 8, 9], [-0.5, -0.25, 0.0], text="abc", finish_reason="length")]
    ) as provider:
        sampling = Sampling(temperature=1.0, max_tokens=3, stop=("X",))
        reply = await completions_on(provider).complete_tokens([1, 2], sampling)
    assert reply.tokens == TokenTrace((1, 2), (7, 8, 9), (-0.5, -0.25, 0.0))
    assert (reply.finish_reason, reply.text, reply.attempts) == ("length", "abc", 1)
    assert reply.usage == Usage(10, output_tokens=5)
    assert reply.cost_usd == pytest.approx(60e-6)
    assert reply.raw["choices"][0]["token_ids"] == [7, 8, 9]
    (request,) = provider.requests
    assert request.path == "/v1/completions"
    assert request.json == {
        "model": "fake",
        "prompt": [1, 2],
        "logprobs": 1,
        "return_token_ids": True,
        **explicit_sampling({"temperature": 1.0, "max_tokens": 3, "stop": ["X"]}),
    }


async def test_ids_written_as_token_texts_are_read() -> None:
    logprobs = {"tokens": ["token_id:7", "token_id:8"], "token_logprobs": [-0.5, -0.25]}
    choice = {"text": "ab", "finish_reason": "stop", "logprobs": logprobs}
    with FakeProvider([raw({"choices": [choice], "metadata": {"weight_version": "v9"}})]) as provider:
        reply = await completions_on(provider).complete_tokens([1], limited_to(2))
    assert reply.tokens.sampled_ids == (7, 8)
    assert reply.tokens.policy_version == "v9"


async def test_an_answer_of_no_tokens_is_an_answer() -> None:
    with FakeProvider([tokens([], [])]) as provider:
        assert (await completions_on(provider).complete_tokens([1], limited_to(1))).tokens.sampled_ids == ()


@pytest.mark.parametrize(
    ("reply", "missing"),
    [
        (text("only text"), "the ids of the tokens"),
        (tokens([7], None), "the logprobs of the tokens"),
        (tokens([7, 8], [-0.5]), "one logprob per token"),
    ],
)
async def test_a_server_that_keeps_tokens_to_itself_is_an_error_and_nothing_is_made_up(
    reply: Reply, missing: str
) -> None:
    with FakeProvider(lambda body: reply) as provider:
        with pytest.raises(ProviderError, match=missing) as error:
            await completions_on(provider).complete_tokens([1], limited_to(2))
        assert not error.value.retryable
        assert len(provider.requests) == 1


async def test_a_logprob_that_is_no_number_is_a_missing_logprob() -> None:
    choice = {"token_ids": [7, 8], "logprobs": {"token_logprobs": [None, -0.5]}, "finish_reason": "stop"}
    with (
        FakeProvider([raw({"choices": [choice]})]) as provider,
        pytest.raises(ProviderError, match="logprobs"),
    ):
        await completions_on(provider).complete_tokens([1], limited_to(2))


async def test_completions_retry_and_time_out_like_chat() -> None:
    with FakeProvider([status(503), tokens([7], [-0.5])]) as provider:
        model = completions_on(provider)
        assert (await model.complete_tokens([1], limited_to(1))).attempts == 2
        await model.close()
    with FakeProvider([status(401)]) as provider:
        with pytest.raises(ProviderError):
            await completions_on(provider).complete_tokens([1], limited_to(1))
        assert len(provider.requests) == 1
