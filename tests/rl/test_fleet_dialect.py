"""What a fleet sends to vLLM and SGLang, and which logprobs it accepts from them."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.core import explicit_sampling
from hermes.errors import ProviderError
from hermes.rl.fleet.dialect import SGLANG, VLLM, LogprobScale, WeightsName

BASE, ADAPTER = WeightsName("base", None), WeightsName("base", "hermes-step-1")


def test_the_weights_are_named_as_each_server_names_them() -> None:
    body = {"model": "policy", "prompt": [1]}
    assert [VLLM.request("/v1/completions", body, name)["model"] for name in (BASE, ADAPTER)] == [
        "base",
        "hermes-step-1",
    ]
    chats = [SGLANG.request("/v1/chat/completions", body, name)["model"] for name in (BASE, ADAPTER)]
    assert chats == ["base", "base:hermes-step-1"], "SGLang answers any other name with the base model"
    generates = [SGLANG.request("/generate", {**body, "lora_path": "x"}, name) for name in (BASE, ADAPTER)]
    assert "lora_path" not in generates[0] and generates[1]["lora_path"] == "hermes-step-1"


def test_every_sampling_parameter_is_explicit_and_a_given_one_is_kept() -> None:
    request = VLLM.request("/v1/completions", {"prompt": [1], "top_p": 0.9, "temperature": None}, BASE)
    assert (request["top_p"], request["top_k"], request["temperature"]) == (0.9, -1, 1.0)
    params = SGLANG.request("/generate", {"input_ids": [1], "sampling_params": {"top_k": 3}}, BASE)
    assert params["sampling_params"] == explicit_sampling({"top_k": 3})


@pytest.mark.parametrize(
    ("at_one", "at_two", "scale"),
    [
        (-0.84, -0.84, LogprobScale(False, False)),  # vLLM, raw_logprobs
        (0.0, 0.0, LogprobScale(True, True)),  # vLLM, processed_logprobs; the engine
        (-2.24, -4.98, LogprobScale(True, False)),  # SGLang
    ],
)
def test_two_probes_tell_what_the_logprobs_take_into_account(
    at_one: float, at_two: float, scale: LogprobScale
) -> None:
    assert LogprobScale.of(at_one, at_two) == scale


@pytest.mark.parametrize(
    ("sampling", "missing"),
    [
        ({}, (None, None, None)),
        ({"temperature": 0}, (None, None, None)),
        ({"temperature": 0.7}, ("temperature 0.7", None, None)),
        ({"top_p": 0.9}, ("top_p 0.9", "top_p 0.9", None)),
        ({"top_k": 20, "temperature": 0.6}, ("temperature 0.6", "top_k 20", None)),
        ({"min_p": 0.1}, ("min_p 0.1", "min_p 0.1", None)),
        ({"temperature": "hot"}, (None, None, None)),
    ],
)
def test_a_request_is_accepted_if_the_logprobs_will_be_those_of_its_distribution(
    sampling: dict[str, Any], missing: tuple[str | None, ...]
) -> None:
    scales = (LogprobScale(False, False), LogprobScale(True, False), LogprobScale(True, True))
    assert tuple(scale.missing(explicit_sampling(sampling)) for scale in scales) == missing


def test_only_a_request_for_logprobs_needs_them_to_be_right() -> None:
    for body, has_logprobs in (({"logprobs": 0}, True), ({"logprobs": True}, True), ({}, False)):
        request = VLLM.request("/v1/completions", body, BASE)
        assert (VLLM.sampling("/v1/completions", request) is not None) == has_logprobs
    for flag in (True, False):
        request = SGLANG.request("/generate", {"input_ids": [1], "return_logprob": flag}, BASE)
        assert (SGLANG.sampling("/generate", request) is not None) == flag


def test_an_answer_gets_the_version_and_one_of_other_weights_is_refused() -> None:
    answer = SGLANG.answer("/generate", [{"text": "a"}, {"text": "b"}], ADAPTER, "v1")
    assert isinstance(answer, list) and len(answer) == 2
    assert answer[1] == {"text": "b", "meta_info": {"weight_version": "v1"}}
    chat = SGLANG.answer("/v1/chat/completions", {"model": "base"}, ADAPTER, "v1")
    assert chat == {"model": "base", "metadata": {"weight_version": "v1"}}
    with pytest.raises(ProviderError, match="the answer is of 'base', and 'hermes-step-1' was requested"):
        VLLM.answer("/v1/completions", {"model": "base"}, ADAPTER, "v1")
