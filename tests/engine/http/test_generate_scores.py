"""/generate scores a prompt: from which token on, by which weights, and where there is none."""

from __future__ import annotations

import pytest
import tinker

from tests.engine.http.engine_process import Server, prompt, tokens
from tests.engine.http.openai_calls import generate

NONE = {"max_new_tokens": 0}


@pytest.mark.parametrize("start", [0, 1, 5, 8])
def test_a_prompt_is_scored_from_the_token_asked_for_as_the_tinker_api_scores_it(
    shared: Server, model: str, client: tinker.ServiceClient, start: int
) -> None:
    ids = tokens(9, seed=4)
    expected = client.create_sampling_client(base_model=model).compute_logprobs(prompt(9, seed=4)).result()
    given = generate(
        shared, model=model, input_ids=ids, sampling_params=NONE, return_logprob=True, logprob_start_len=start
    )
    told = given["meta_info"]["input_token_logprobs"]
    assert [token for _, token, _ in told] == ids[start:]
    assert told[0][0] is None, "as SGLang has it"
    assert [logprob for logprob, _, _ in told[1:]] == pytest.approx(expected[start + 1 :], abs=1e-5)
    assert given["output_ids"] == [] and given["meta_info"]["output_token_logprobs"] == []


def test_several_prompts_are_scored_beside_what_is_sampled(shared: Server, model: str) -> None:
    prompts = [tokens(4, seed=1), tokens(7, seed=2)]
    body = {"model": model, "return_logprob": True, "logprob_start_len": 0}
    params = {"max_new_tokens": 3, "temperature": 0, "n": 2}
    listed = generate(shared, input_ids=prompts, sampling_params=params, **body)
    assert [len(one["meta_info"]["input_token_logprobs"]) for one in listed] == [4, 4, 7, 7]
    for ids, told in zip(prompts, listed[::2], strict=True):
        alone = generate(shared, input_ids=ids, sampling_params=NONE, **body)
        found, expected = (
            [entry[0] for entry in one["meta_info"]["input_token_logprobs"][1:]] for one in (told, alone)
        )
        assert found == pytest.approx(expected, abs=1e-5) and told["output_ids"]


@pytest.mark.parametrize(
    "asked",
    [{"return_logprob": True}, {"logprob_start_len": 0}, {"return_logprob": True, "logprob_start_len": -1}],
)
def test_a_prompt_is_not_scored_where_nobody_asks(
    shared: Server, model: str, asked: dict[str, object]
) -> None:
    given = generate(shared, model=model, input_ids=[5, 6], sampling_params=NONE, **asked)
    assert "input_token_logprobs" not in given["meta_info"]


@pytest.mark.parametrize(
    ("start", "words"), [(2, "is 2, but the prompt has 2 tokens"), (-2, "logprob_start_len")]
)
def test_a_token_that_the_prompt_does_not_have_is_refused(
    shared: Server, model: str, start: int, words: str
) -> None:
    body = {"model": model, "input_ids": [5, 6], "return_logprob": True, "logprob_start_len": start}
    answer = shared.ask("POST", "/generate", body)
    assert answer.status in (400, 422) and words in answer.body.decode()
