"""The bundled model behind the OpenAI face: the public client, our own clients, and the agent itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types as tt
from transformers import AutoTokenizer

from hermes.config.providers import ModelTarget
from hermes.config.settings import ProviderSettings
from hermes.core import Message, Sampling
from hermes.models.base import ChatRequest
from hermes.models.local.bundled import model_folder
from hermes.models.local.chat import LocalChat
from hermes.models.render.chat import ChatRenderer
from hermes.models.tokens.chat import TokenChat
from hermes.models.tokens.completions import CompletionModel, GenerateModel
from tests.cli.process import hermes
from tests.engine.http.engine_process import KEY, TOKEN, Server, datum, launch
from tests.engine.http.openai_parts import TOOL, TOOLS, prompt_ids, public_client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
NAME = "hermes/smollm2"
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def bundled(bundled_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    state_dir = tmp_path_factory.mktemp("bundled")
    limits = ("--max-length", "1024")
    server = launch(NAME, state_dir, *limits, HERMES_HOME=str(bundled_home), HF_HUB_OFFLINE="1")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def tokenizer(bundled_home: Path) -> Any:
    return AutoTokenizer.from_pretrained(model_folder(bundled_home))


def target(server: Server) -> ModelTarget:
    settings = ProviderSettings(base_url=f"{server.url}/v1", extra_body={"model": NAME})
    return ModelTarget("custom", NAME, f"{server.url}/v1", None, TOKEN, settings)


def test_it_answers_the_public_client_streamed_or_not(bundled: Server) -> None:
    chat = public_client(bundled).chat.completions
    whole = chat.create(model=NAME, messages=QUESTION, **GREEDY)
    assert "Paris" in (whole.choices[0].message.content or "")
    stream = chat.create(model=NAME, messages=QUESTION, stream=True, **GREEDY)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert len(pieces) > 4
    assert "".join(pieces) == whole.choices[0].message.content


async def test_it_says_what_the_model_in_this_process_says(bundled: Server, bundled_home: Path) -> None:
    local = LocalChat.open("smollm2", bundled_home)
    messages = (Message.system("Be brief."), Message.user("Add 2 and 3."))
    request = ChatRequest(messages, (TOOL,), Sampling(temperature=0.0, max_tokens=24))
    try:
        here = (await local.complete(request)).call.tokens
    finally:
        await local.close()
    assert here is not None
    wire = [{"role": message.role.value, "content": message.content} for message in messages]
    ids = prompt_ids(bundled, NAME, wire, tools=TOOLS)
    assert ids == list(here.prompt_ids)
    answer = public_client(bundled).chat.completions.create(
        model=NAME,
        messages=wire,  # type: ignore[arg-type]
        tools=TOOLS,
        logprobs=True,
        extra_body={"return_token_ids": True},
        **GREEDY,
    )
    assert answer.choices[0].model_extra is not None
    assert answer.choices[0].model_extra["token_ids"] == list(here.sampled_ids)
    assert answer.choices[0].logprobs is not None
    told = [one.logprob for one in answer.choices[0].logprobs.content or ()]
    assert told == pytest.approx(here.logprobs, abs=1e-3)


@pytest.mark.parametrize("kind", [CompletionModel, GenerateModel])
async def test_a_rollout_in_tokens_grows_by_appending_and_is_found_in_the_cache(
    bundled: Server, tokenizer: Any, kind: type[CompletionModel] | type[GenerateModel]
) -> None:
    source = kind(target(bundled))
    chat = TokenChat(source, ChatRenderer.of(tokenizer, "hermes", 1024))
    sampling = Sampling(temperature=0.0, max_tokens=24)
    messages: tuple[Message, ...] = (Message.user("What is the capital of France?"),)
    try:
        first = await chat.complete(ChatRequest(messages, (), sampling))
        messages = (*messages, first.message, Message.user("One more."))
        second = await chat.complete(ChatRequest(messages, (), sampling))
    finally:
        await source.close()
    assert first.call.tokens is not None
    assert second.call.tokens is not None
    before = (*first.call.tokens.prompt_ids, *first.call.tokens.sampled_ids)
    assert first.call.finish_reason == "stop"
    assert second.call.tokens.prompt_ids[: len(before)] == before
    assert second.call.usage.cached_input_tokens >= len(before) - 1
    assert first.call.tokens.policy_version == NAME


def learn(server: Server, lessons: list[tuple[list[int], list[int]]], alias: str) -> str:
    """Teaches it answers word for word."""
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    try:
        training = client.create_lora_training_client(NAME, rank=8, seed=0)
        data = [
            datum([*prompt, *answer], weights=[0.0] * (len(prompt) - 1) + [1.0] * len(answer))
            for prompt, answer in lessons
        ]
        loss = float("inf")
        while loss > 0.2:
            output = training.forward_backward(data, "cross_entropy")
            training.optim_step(tt.AdamParams(learning_rate=2e-3)).result()
            loss = output.result().metrics["loss:sum"]
        path: str = training.save_weights_for_sampler("learned", user_metadata={"alias": alias}).result().path
        return path
    finally:
        client.close("success").result(timeout=30)


def test_it_learns_to_call_a_tool_and_the_agent_talks_to_the_policy(
    bundled: Server, tokenizer: Any, tmp_path: Path
) -> None:
    question: list[Any] = [{"role": "user", "content": "What is 2+3?"}]
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>'
    answer = tokenizer.encode(call, add_special_tokens=False)
    path = learn(bundled, [(prompt_ids(bundled, NAME, question, tools=TOOLS), answer)], "policy")
    said = public_client(bundled).chat.completions.create(
        model="policy", messages=question, tools=TOOLS, max_tokens=60, temperature=0
    )
    assert said.choices[0].finish_reason == "tool_calls"
    assert said.choices[0].message.tool_calls is not None
    function = said.choices[0].message.tool_calls[0].function  # type: ignore[union-attr]
    assert (function.name, json.loads(function.arguments)) == ("add", {"a": 2, "b": 3})
    assert json.loads(said.to_json())["metadata"]["weight_version"].startswith(f"{path}@")
    one_question = ["-q", "Say hello.", "--base-url", f"{bundled.url}/v1", "--model", "policy"]
    done = hermes(tmp_path, *one_question, "--toolsets", "none", "--json", timeout_s=180)
    report = json.loads(done.stdout)
    assert report["outcome"].get("boundary") != "provider", report
    assert report["usage"]["output_tokens"] > 0
    assert report["model"] == "custom/policy"
