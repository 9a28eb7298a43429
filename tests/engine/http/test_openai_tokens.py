"""Completions and /generate: ids in and ids out exactly, lists, stops, seeds, streams, refusals."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types as tt

from hermes.config.providers import ModelTarget
from hermes.config.settings import ProviderSettings
from hermes.core import Sampling
from hermes.engine.server.openai.sampling import sampling_params, stop_condition
from hermes.engine.server.openai.schema import SamplingFields as Asked
from hermes.models.tokens.completions import CompletionModel, GenerateModel
from tests.engine.http.engine_process import EOS, TOKEN, VOCAB, Server, prompt, tokens
from tests.engine.http.openai_calls import generate
from tests.engine.http.openai_parts import public_client


def complete(server: Server, model: str, **body: Any) -> Any:
    answer = server.ask("POST", "/v1/completions", {"model": model, "temperature": 0, **body})
    assert answer.status == 200, answer
    return answer.json()


def events(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    lines = server.ask("POST", path, {**body, "stream": True}).body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_ids_go_in_and_come_out_as_the_tinker_sampler_has_them(
    shared: Server, model: str, client: tinker.ServiceClient
) -> None:
    ids = tokens(9, seed=1)
    sampler = client.create_sampling_client(base_model=model)
    params = tt.SamplingParams(max_tokens=12, temperature=1.0, seed=5)
    expected = sampler.sample(prompt(9, seed=1), 1, params).result().sequences[0]
    sampling = {"max_new_tokens": 12, "temperature": 1.0, "sampling_seed": 5}
    given = generate(shared, model=model, input_ids=ids, sampling_params=sampling, return_logprob=True)
    assert given["output_ids"] == expected.tokens
    pairs = given["meta_info"]["output_token_logprobs"]
    assert [token for _, token, _ in pairs] == expected.tokens
    assert [logprob for logprob, _, _ in pairs] == pytest.approx(expected.logprobs, abs=1e-5)
    answer = complete(
        shared, model, prompt=ids, max_tokens=12, temperature=1, seed=5, logprobs=0, return_token_ids=True
    )
    (choice,) = answer["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (ids, expected.tokens)
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected.logprobs, abs=1e-5)
    assert answer["usage"]["completion_tokens"] == len(expected.tokens)


def test_logprobs_are_those_that_scoring_gives(
    shared: Server, model: str, client: tinker.ServiceClient
) -> None:
    ids = tokens(7, seed=2)
    sampling = {"max_new_tokens": 40, "sampling_seed": 1}
    given = generate(shared, model=model, input_ids=ids, sampling_params=sampling, return_logprob=True)
    sampler = client.create_sampling_client(base_model=model)
    scored = sampler.compute_logprobs(tt.ModelInput.from_ints([*ids, *given["output_ids"]])).result()
    told = [logprob for logprob, _, _ in given["meta_info"]["output_token_logprobs"]]
    assert told == pytest.approx(scored[len(ids) :], abs=1e-3)


def test_a_list_in_is_a_list_out_and_n_samples_too(shared: Server, model: str) -> None:
    prompts = [tokens(5, seed=index) for index in range(3)]
    greedy = {"max_new_tokens": 6, "temperature": 0}
    listed = generate(shared, model=model, input_ids=prompts, sampling_params=greedy)
    alone = [
        generate(shared, model=model, input_ids=one, sampling_params=greedy)["output_ids"] for one in prompts
    ]
    assert [one["output_ids"] for one in listed] == alone
    assert len(generate(shared, model=model, input_ids=prompts[:1], sampling_params=greedy)) == 1
    several = generate(
        shared, model=model, input_ids=prompts[0], sampling_params={"n": 3, "sampling_seed": 1}
    )
    assert len({tuple(one["output_ids"]) for one in several}) == 3
    answer = complete(shared, model, prompt=prompts, n=2, max_tokens=6, return_token_ids=True)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["token_ids"] for choice in answer["choices"]] == [ids for ids in alone for _ in range(2)]
    assert [choice["prompt_token_ids"] for choice in answer["choices"][::2]] == prompts


def test_text_in_is_what_its_ids_would_be(shared: Server, model: str) -> None:
    answer = complete(shared, model, prompt=["héllo", "abc"], max_tokens=3, return_token_ids=True)
    ids = [choice["prompt_token_ids"] for choice in answer["choices"]]
    assert [len(one) for one in ids] == [6, 3]
    again = generate(
        shared, model=model, text="héllo", sampling_params={"max_new_tokens": 3, "temperature": 0}
    )
    assert again["output_ids"] == answer["choices"][0]["token_ids"]
    assert again["meta_info"]["prompt_tokens"] == 6


def stopping_example(shared: Server, model: str) -> tuple[list[int], list[int]]:
    """A prompt, and what it is greedily continued with."""
    ids = tokens(6, seed=11)
    return ids, generate(
        shared, model=model, input_ids=ids, sampling_params={"max_new_tokens": 12, "temperature": 0}
    )["output_ids"]


def test_stops_say_what_they_matched_and_leave_the_text(shared: Server, model: str) -> None:
    ids, greedy = stopping_example(shared, model)
    stop = greedy[4]
    at = greedy.index(stop)
    params = {"max_new_tokens": 12, "temperature": 0, "skip_special_tokens": False}
    by_id = generate(shared, model=model, input_ids=ids, sampling_params={**params, "stop_token_ids": [stop]})
    assert by_id["output_ids"] == greedy[: at + 1]
    assert by_id["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    whole = generate(shared, model=model, input_ids=ids, sampling_params=params)
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
    word = whole["text"][3:6]
    by_text = generate(shared, model=model, input_ids=ids, sampling_params={**params, "stop": [word]})
    assert by_text["text"] == whole["text"].partition(word)[0]
    assert by_text["meta_info"]["finish_reason"] == {"type": "stop", "matched": word}
    assert by_text["output_ids"] == greedy[: len(by_text["output_ids"])]
    both = {**params, "stop": [word, "never"], "stop_token_ids": [stop]}
    ended = generate(shared, model=model, input_ids=ids, sampling_params=both)
    first = by_id if at < len(by_text["output_ids"]) else by_text
    assert ended["meta_info"]["finish_reason"] == first["meta_info"]["finish_reason"]
    assert ended["output_ids"] == first["output_ids"]
    for change, expected in (({"stop": ["never"]}, by_id), ({"stop_token_ids": [0]}, by_text)):
        other = generate(shared, model=model, input_ids=ids, sampling_params=both | change)
        assert other["output_ids"] == expected["output_ids"]


def test_the_end_of_sequence_still_ends_it_beside_other_stop_ids() -> None:
    def stops(**asked: Any) -> Any:
        wish = Asked(**asked)
        return sampling_params(wish, stop_condition(wish, (EOS,)), None, None).stop

    assert stops(stop_token_ids=[9, 7]) == (EOS, 7, 9)
    assert stops(stop="x") == ("x",)
    assert stops(stop="x", stop_token_ids=[9]) == ("x", EOS, 9)
    assert stops() is None


@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_a_stream_of_completions_adds_up(shared: Server, model: str, logprobs: int | None) -> None:
    body: dict[str, Any] = {
        "model": model,
        "prompt": [tokens(6, seed=3), tokens(4, seed=4)],
        "max_tokens": 30,
        "seed": 2,
        "logprobs": logprobs,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    answer = shared.ask("POST", "/v1/completions", {**body, "stream_options": None})
    assert answer.status == 200, answer
    whole = answer.json()
    *chunks, last = events(shared, "/v1/completions", body)
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for expected in whole["choices"]:
        mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == expected["index"]]
        assert "".join(one["text"] for one in mine) == expected["text"]
        assert [token for one in mine for token in one["token_ids"]] == expected["token_ids"]
        assert mine[0]["prompt_token_ids"] == expected["prompt_token_ids"]
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
        if logprobs is not None:
            for field in ("tokens", "text_offset"):
                assert [x for one in mine if one["logprobs"] for x in one["logprobs"][field]] == expected[
                    "logprobs"
                ][field]


def test_a_stream_of_generate_repeats_what_there_is_and_ends_like_the_answer(
    shared: Server, model: str
) -> None:
    body = {
        "model": model,
        "input_ids": tokens(6, seed=3),
        "sampling_params": {"max_new_tokens": 8, "temperature": 0},
    }
    whole = generate(shared, **body)
    told = events(shared, "/generate", body)
    assert [one["output_ids"] for one in told[:-1]] == [whole["output_ids"][:size] for size in range(1, 9)]
    assert (told[-1]["text"], told[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    assert told[-1]["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]


def test_the_public_client_completes_and_streams(shared: Server, model: str) -> None:
    api = public_client(shared)
    ids = tokens(6, seed=3)
    whole = api.completions.create(model=model, prompt=ids, max_tokens=10, temperature=0, logprobs=2)
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.top_logprobs is not None
    assert all(1 <= len(top) <= 3 for top in whole.choices[0].logprobs.top_logprobs)
    stream = api.completions.create(model=model, prompt=ids, max_tokens=10, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    assert next(iter(api.models.list())).id == model
    assert api.models.retrieve(model).id == model


@pytest.mark.parametrize("kind", [CompletionModel, GenerateModel])
async def test_our_own_token_clients_get_ids_logprobs_and_the_version(
    shared: Server, model: str, kind: type[CompletionModel] | type[GenerateModel]
) -> None:
    settings = ProviderSettings(base_url=f"{shared.url}/v1", extra_body={"model": model})
    source = kind(ModelTarget("custom", model, f"{shared.url}/v1", None, TOKEN, settings))
    ids = tokens(6, seed=3)
    try:
        reply = await source.complete_tokens(ids, Sampling(temperature=0.0, max_tokens=10))
    finally:
        await source.close()
    expected = complete(shared, model, prompt=ids, max_tokens=10, return_token_ids=True)["choices"][0]
    assert list(reply.tokens.sampled_ids) == expected["token_ids"]
    assert len(reply.tokens.logprobs) == 10
    assert all(np.isfinite(reply.tokens.logprobs))
    assert (reply.finish_reason, reply.tokens.policy_version) == ("length", model)
    assert reply.usage.output_tokens == 10


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("/generate", {}, 400, "either input_ids or text"),
    ("/generate", {"input_ids": [5], "text": "x"}, 400, "either input_ids or text"),
    ("/generate", {"input_ids": []}, 400, "has 0"),
    ("/generate", {"input_ids": [[]]}, 400, "prompt is empty"),
    ("/generate", {"input_ids": [VOCAB]}, 400, "outside the vocabulary"),
    ("/generate", {"input_ids": [2**70]}, 400, ""),
    ("/generate", {"input_ids": [3] * 300}, 400, "context length is 256"),
    ("/generate", {"input_ids": [5], "sampling_params": {"min_p": 0.1}}, 400, "'min_p' is not supported"),
    ("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": -1}}, 400, "max_new_tokens"),
    ("/generate", {"input_ids": [5], "lora_path": "nobody"}, 404, "'nobody' does not exist"),
    ("/v1/completions", {"model": "M"}, 400, "prompt"),
    ("/v1/completions", {"prompt": "x"}, 400, "model"),
    ("/v1/completions", {"model": "M", "prompt": "x", "echo": True, "stream": True}, 400, "'echo' is not"),
    ("/v1/completions", {"model": "M", "prompt": "x", "logprobs": 21}, 400, "logprobs"),
    ("/v1/completions", {"model": "nobody", "prompt": "x"}, 404, "there is "),
    ("/v1/completions", {"model": "tinker://a/weights/b", "prompt": "x"}, 404, "there is "),
    ("/v1/chat/completions", {"model": "M", "messages": [{"role": "user"}]}, 400, "no chat template"),
    ("/v1/embeddings", {"model": "M", "input": "x"}, 404, "POST /v1/embeddings is not supported"),
]


@pytest.mark.parametrize(("path", "body", "status", "words"), REFUSED)
def test_a_wrong_request_is_refused_in_openais_shape(
    shared: Server, model: str, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    sent = {**body, "model": model} if body.get("model") == "M" else body
    answer = shared.ask("POST", path, sent)
    assert answer.status == status, answer
    error = answer.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == ("model_not_found" if "does not exist" in error["message"] else error["code"])


def test_a_body_that_is_no_json_is_refused_in_openais_shape(shared: Server) -> None:
    answer = shared.ask("POST", "/v1/completions", raw=b"{")
    assert answer.status == 400
    assert "Invalid JSON" in answer.json()["error"]["message"]


def test_an_echoed_prompt_has_the_logprobs_that_scoring_it_gives(shared: Server, model: str) -> None:
    """As lm-eval asks for the likelihood of a continuation."""
    prompts = [tokens(7, seed=3), tokens(5, seed=4)]
    body = {"prompt": prompts, "max_tokens": 1, "logprobs": 1, "echo": True, "n": 2, "temperature": 1}
    choices = complete(shared, model, **body)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    for choice, ids in zip(choices, [prompts[0], prompts[0], prompts[1], prompts[1]], strict=True):
        scored = generate(
            shared, model=model, input_ids=ids, return_logprob=True, logprob_start_len=0,
            sampling_params={"max_new_tokens": 1},
        )["meta_info"]["input_token_logprobs"]  # fmt: skip
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(ids) + 1
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert logprobs["token_logprobs"][1 : len(ids)] == pytest.approx(
            [entry[0] for entry in scored[1:]], abs=1e-4
        )
        for value, top in zip(logprobs["token_logprobs"][1:-1], logprobs["top_logprobs"][1:-1], strict=True):
            assert value in top.values() and value <= max(top.values())
        assert choice["text"].startswith("".join(logprobs["tokens"][:2]))
