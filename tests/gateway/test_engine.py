"""Our own engine behind the gateway: a policy that calls a tool, asked by Anthropic's and OpenAI's clients.

The tiny model is taught to call a tool where there is one and to answer its result; everything else is real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import openai
import pytest

from hermes.config.load import Config
from hermes.core import StepKind, Trajectory
from hermes.gateway.wire import Protocol
from tests.engine.http.engine_process import KEY, Server, launch
from tests.engine.http.openai_parts import TOOL, TOOLS, encode, make_chat_model, prompt_ids, teach
from tests.gateway.conftest import gateway, stored

pytestmark = pytest.mark.timeout(400)  # on a busy machine the lessons take a while
POLICY = "policy:adder"
QUESTION = "What is 2+3?"
CALLING = (
    '<think>\nAdd them.\n</think>\nLet me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n'
    "</tool_call>"
)
RESULT = '{"sum": 5}'
CHAT = frozenset({Protocol.CHAT})
SCHEMA = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
FUNCTION = {"type": "function", **TOOL}
LIMIT = 120
GREEDY: dict[str, Any] = {"temperature": 0}


class Adder(NamedTuple):
    server: Server
    folder: Path

    def tokens(self, *more: Any) -> int:
        """Of the prompt with the question, and what follows it."""
        messages = [{"role": "user", "content": QUESTION}, *more]
        return len(prompt_ids(self.server, str(self.folder), messages, tools=TOOLS))

    def second_tokens(self, call_id: str) -> int:
        """Of the prompt with the tool's result, in which the call's id stands."""
        function = {"name": "add", "arguments": '{"a": 2, "b": 3}'}
        calls = [{"id": call_id, "type": "function", "function": function}]
        answer = {"role": "assistant", "content": "Let me see.", "reasoning_content": "Add them."}
        result = {"role": "tool", "tool_call_id": call_id, "content": RESULT}
        return self.tokens({**answer, "tool_calls": calls}, result)


@pytest.fixture(scope="module")
def adder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adder]:
    folder: Path = make_chat_model(tmp_path_factory.mktemp("models") / "chat")
    server = launch(folder, tmp_path_factory.mktemp("engine"))
    prompt = prompt_ids(server, str(folder), [{"role": "user", "content": QUESTION}], tools=TOOLS)
    teach(server, str(folder), [(prompt, encode(folder, CALLING))], "taught", alias=POLICY)
    yield Adder(server, folder)
    server.kill()


def check(adder: Adder, trajectory: Trajectory, answer: str) -> None:
    """The whole conversation is one trajectory, with the engine's own counts."""
    kinds = [step.kind for step in trajectory.steps]
    assert kinds == [StepKind.INPUT, StepKind.MODEL, StepKind.TOOL, StepKind.MODEL]
    calling = trajectory.steps[1].message
    assert (calling.content, calling.reasoning) == ("Let me see.", "Add them.")
    (call,) = calling.tool_calls
    assert call.parsed() == {"a": 2, "b": 3}
    assert trajectory.answer == answer and trajectory.header.tools == ("add",)
    first, second = (step.call for step in trajectory.steps if step.call)
    assert first.model.endswith(POLICY)
    counts = [(made.usage.prompt, made.usage.completion) for made in (first, second)]
    assert counts[0] == (adder.tokens(), len(encode(adder.folder, CALLING)) + 1)
    assert counts[1] == (adder.second_tokens(call.id), second.usage.completion)
    assert 1 < second.usage.completion <= LIMIT


def messages_client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_messages(config: Config, adder: Adder, stream: bool) -> None:
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    fields: Any = {"model": POLICY, "max_tokens": LIMIT, "tools": [SCHEMA], "extra_body": GREEDY}
    kinds = []
    with gateway(config, adder.server.url, CHAT) as recording:
        client = messages_client(recording.url)
        counted = client.messages.count_tokens(model=POLICY, messages=history, tools=[SCHEMA])  # type: ignore[list-item]
        assert counted.input_tokens == adder.tokens()
        answers = []
        for _ in range(2):
            if stream:
                with client.messages.stream(messages=history, **fields) as events:
                    kinds.append([event.type for event in events])
                    answer = events.get_final_message()
            else:
                answer = client.messages.create(messages=history, **fields)
            answers.append(answer)
            history.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": RESULT}
                for block in answer.content
                if block.type == "tool_use"
            ]
            history.append({"role": "user", "content": results})
        assert next(model.id for model in client.models.list())
    calling, last = answers
    assert [block.type for block in calling.content] == ["thinking", "text", "tool_use"]
    assert calling.stop_reason == "tool_use"
    (trajectory,) = stored(config)
    check(adder, trajectory, "".join(block.text for block in last.content if block.type == "text"))
    recorded = [step.call.usage for step in trajectory.steps if step.call]
    for answer, usage in zip(answers, recorded, strict=True):
        prompt = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
        assert (prompt, answer.usage.output_tokens) == (usage.prompt, usage.completion)
    if stream:  # token by token: a token of this model is a letter
        assert kinds[0].count("text") > 5 and kinds[0].count("thinking") > 5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_responses(config: Config, adder: Adder, stream: bool) -> None:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    fields: Any = {"model": POLICY, "max_output_tokens": LIMIT, "temperature": 0, "tools": [FUNCTION]}
    with gateway(config, adder.server.url, CHAT) as recording:
        client = openai.OpenAI(base_url=f"{recording.url}/v1", api_key=KEY, max_retries=0)
        answers, pieces = [], []
        for _ in range(2):
            if stream:
                with client.responses.create(input=items, stream=True, **fields) as events:
                    *begun, end = events
                pieces.append(sum(event.type == "response.output_text.delta" for event in begun))
                answer = end.response  # "incomplete" where a random answer meets the limit
            else:
                answer = client.responses.create(input=items, **fields)
            answers.append(answer)
            items += [item.model_dump(exclude_none=True) for item in answer.output]
            items += [
                {"type": "function_call_output", "call_id": item.call_id, "output": RESULT}
                for item in answer.output
                if item.type == "function_call"
            ]
    calling, last = answers
    assert [item.type for item in calling.output] == ["reasoning", "message", "function_call"]
    if stream:
        assert pieces[0] > 5
    (trajectory,) = stored(config)
    check(adder, trajectory, last.output_text)
    recorded = [step.call.usage for step in trajectory.steps if step.call]
    for answer, usage in zip(answers, recorded, strict=True):
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (usage.prompt, usage.completion)


def test_what_agents_send_beside_the_prompt_is_not_refused(config: Config, adder: Adder) -> None:
    """Limits above the context, effort, metadata, forced and parallel calls, and a schema of the answer."""
    question = [{"role": "user", "content": QUESTION}]
    more: dict[str, Any] = {
        "max_tokens": 32_000,
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "metadata": {"user_id": json.dumps({"session_id": "s1"})},
        "output_config": {"effort": "high"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    with gateway(config, adder.server.url, CHAT) as recording:
        client = messages_client(recording.url)
        answer = client.messages.create(
            model=POLICY,
            messages=question,
            tools=[SCHEMA],
            extra_body={**GREEDY, "context_management": {"edits": []}},
            **{**more, "max_tokens": 9_000},
        )
        assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
        with client.messages.stream(
            model=POLICY, messages=question, tools=[SCHEMA], extra_body=GREEDY, **more
        ) as events:
            assert events.get_final_message().stop_reason == "tool_use"
        responses = openai.OpenAI(base_url=f"{recording.url}/v1", api_key=KEY, max_retries=0).responses
        fields: Any = {
            "reasoning": {"effort": "medium", "summary": "auto"},
            "parallel_tool_calls": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "s2",
            "store": False,
            "text": {"verbosity": "low"},
        }
        answered = responses.create(
            model=POLICY,
            input=QUESTION,
            temperature=0,
            tools=[FUNCTION],
            **fields,  # type: ignore[list-item]
        )
        assert [item.type for item in answered.output] == ["reasoning", "message", "function_call"]


def test_a_prompt_that_is_too_long_is_refused_in_the_words_on_which_agents_act(
    config: Config, adder: Adder
) -> None:
    long: list[Any] = [{"role": "user", "content": "x" * 3000}]
    with gateway(config, adder.server.url, CHAT) as recording:
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            messages_client(recording.url).messages.create(model=POLICY, messages=long, max_tokens=9)
        client = openai.OpenAI(base_url=f"{recording.url}/v1", api_key=KEY, max_retries=0)
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model=POLICY, input=long)
        assert refused.value.code == "context_length_exceeded"
