"""Token-exact conversations: what the model saw is what is trained on, whatever the template does."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes.config.providers import ModelTarget
from hermes.config.settings import ProviderSettings
from hermes.core import Message, ModelCall, Sampling, explicit_sampling
from hermes.core.sequence import MASKED, MASKED_LOGPROB
from hermes.envs.agent.sequences import build_sequences
from hermes.errors import ConfigError, ContextOverflowError, ProviderError
from hermes.models.base import ChatRequest
from hermes.models.render.chat import ChatRenderer
from hermes.models.render.prompting import with_tools
from hermes.models.tokens.chat import TokenChat
from hermes.models.tokens.completions import CompletionModel, GenerateModel
from tests.envs.templates import FAMILIES, Family, bundled_tokenizer, dressed
from tests.envs.token_cases import LONG, TOOLS, encode_plain
from tests.envs.token_source import Answer, ScriptedSource, TokenServer, bundled_answers, said

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@cache
def _tokenizer(home: Path, family: Family) -> PreTrainedTokenizerBase:
    return dressed(bundled_tokenizer(home), family)


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    chosen: Family = request.param
    return chosen


pieces = st.sampled_from(
    [
        "plain words",
        " white space \n",
        "naïve ☕ 日本語 🧪",
        "<|im_end|>",
        "<|im_start|>user\n",
        "\ue000\ue001",
        "<tool_response>",
        "</s>",
        '{"a": 1}',
        "",
    ]
)
contents = st.lists(pieces, max_size=4).map("".join)
calls = st.sampled_from(
    [
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
        '<tool_call>{"name": "look", "arguments": {"at": "ż ☕"}}</tool_call>',
        '<tool_call>\n{"name": "look", "arguments": {"x": }\n</tool_call>',
        '<tool_call>{"name": "nowhere"}',
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, bool, int]:
    """What the model says, whether it ends its turn, and how its text is cut into tokens."""
    text = draw(st.sampled_from(["", "", "<think>\nhm ☕\n</think>\n\n", "<think>\n\n</think>"])) + draw(
        contents
    )
    text += "\n".join(draw(st.lists(calls, max_size=2)))
    return text, draw(st.booleans()), draw(st.integers(1, 40))


rollouts = st.tuples(
    contents, contents, st.lists(st.tuples(answers(), st.lists(contents, min_size=2)), max_size=4)
)


class Played:
    """A conversation played to its end, with what each call should have seen, worked out here anew."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, family: Family) -> None:
        self.tokenizer = tokenizer
        self.family = family
        self.queue: list[Answer] = []
        self.source = ScriptedSource(lambda ids, params: self.queue.pop(0))
        self.renderer = ChatRenderer.of(tokenizer, "hermes", LONG)
        self.chat = TokenChat(self.source, self.renderer)
        self.calls: list[ModelCall] = []
        self.expected: list[str] = []
        """What each call should have been shown."""
        self.after: list[str] = []
        """The same, and what was then sampled."""

    async def play(self, rollout: Any) -> None:
        system, question, turns = rollout
        messages = [Message.system(system), Message.user(question)]
        raw: dict[int, str] = {}
        for (text, ends, size), told in [*turns, (("Done.", True, 9), ["", ""])]:
            end = [self.tokenizer.convert_tokens_to_ids(self.family.end)] if ends else []
            ids = [*encode_plain(self.tokenizer, text, size), *end]
            self.queue.append(said(ids, "stop" if ends else "length"))
            reply = await self.chat.complete(ChatRequest(tuple(messages), TOOLS))
            self.calls.append(reply.call)
            self.expected.append(self._rendered(messages, raw))
            self.after.append(self.expected[-1] + text + (self.family.end if ends else ""))
            raw[len(messages)] = text
            messages.append(reply.message)
            if reply.message.tool_calls:
                messages += [Message.tool(call, told[0]) for call in reply.message.tool_calls]
            else:
                messages.append(Message.user(told[1]))

    def _rendered(self, messages: list[Message], raw: dict[int, str]) -> str:
        verbatim = [
            Message.assistant(raw[index]) if index in raw else message
            for index, message in enumerate(messages)
        ]
        plain = with_tools(verbatim, TOOLS, self.renderer.parser, self.renderer.result_role)
        turns = [{"role": message.role.value, "content": message.content} for message in plain]
        return str(self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(rollout=rollouts)
async def test_what_is_trained_on_is_what_the_model_saw(
    bundled_home: Path, family: Family, rollout: Any
) -> None:
    tokenizer = _tokenizer(bundled_home, family)
    played = Played(tokenizer, family)
    await played.play(rollout)
    decode = played.renderer.decode
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    sampled_before: list[int] = []
    for call, expected in zip(played.calls, played.expected, strict=True):
        assert call.tokens is not None
        assert decode(call.tokens.prompt_ids) == expected
        assert call.tokens.prompt_ids == tuple(played.source.prompts[len(sampled_before)])
        sampled_before.append(len(call.tokens.sampled_ids))
    exactness = build_sequences(played.calls)
    assert exactness.trainable

    # Every call is in exactly one sequence; the mask covers exactly what was sampled there, in order.
    assert sorted(index for each in exactness.sequences for index in each.calls) == list(
        range(len(played.calls))
    )
    for sequence in exactness.sequences:
        traces = [played.calls[index].tokens for index in sequence.calls]
        assert [mask for mask in sequence.masks if mask != MASKED] == [
            index for trace in traces if trace for index in trace.sampled_ids
        ]
        assert [value for value in sequence.logprobs if value != MASKED_LOGPROB] == [
            value for trace in traces if trace for value in trace.logprobs
        ]
        for token, mask, logprob in zip(sequence.tokens, sequence.masks, sequence.logprobs, strict=True):
            assert mask in (token, MASKED)
            assert (mask == MASKED) == (logprob == MASKED_LOGPROB)
        for trace in traces:
            assert trace is not None
            whole = (*trace.prompt_ids, *trace.sampled_ids)
            assert sequence.tokens[: len(whole)] == whole
        assert decode(sequence.tokens) == played.after[sequence.calls[-1]]

    # A new sequence begins exactly where the template writes the history differently.
    rewritten = [
        index
        for index in range(1, len(played.calls))
        if not played.expected[index].startswith(played.after[index - 1])
    ]
    assert [sequence.calls[0] for sequence in exactness.sequences] == [0, *rewritten]

    # Content never becomes a control token: the template writes as many as it does for harmless content.
    first = played.calls[0].tokens
    assert first is not None
    harmless = Played(tokenizer, family)
    await harmless.play(("", "", []))
    control = harmless.calls[0].tokens
    assert control is not None
    assert sum(index in special for index in first.prompt_ids) == sum(
        index in special for index in control.prompt_ids
    )


async def test_thinking_that_the_template_drops_splits_the_rollout(bundled_home: Path) -> None:
    qwen = next(family for family in FAMILIES if family.name == "qwen")
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    played = Played(_tokenizer(bundled_home, qwen), qwen)
    turns = [
        ((f"<think>\nlook first\n</think>\n\n{call}", True, 3), ["a result", ""]),
        (("<think>\nnow I know\n</think>\n\nIt is blue.", True, 5), ["", "And green?"]),
    ]
    await played.play(("S", "Which colour?", turns))
    exactness = build_sequences(played.calls)
    # Results of tools keep the thinking in place; a new question makes the template drop it.
    assert [sequence.calls for sequence in exactness.sequences] == [(0, 1), (2,)]
    assert "now I know" in played.renderer.decode(exactness.sequences[0].tokens)
    assert "now I know" not in played.renderer.decode(exactness.sequences[1].tokens)


async def test_an_end_token_other_than_the_templates_splits_the_rollout(bundled_home: Path) -> None:
    chatml = replace(FAMILIES[0], end="<|endoftext|>")
    played = Played(_tokenizer(bundled_home, FAMILIES[0]), chatml)
    await played.play(("S", "Q", [(("Hello.", True, 4), ["", "Again?"])]))
    assert [sequence.calls for sequence in build_sequences(played.calls).sequences] == [(0,), (1,)]


async def test_finish_reasons_are_told_truthfully(bundled_home: Path) -> None:
    tokenizer = _tokenizer(bundled_home, FAMILIES[0])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    script = [
        said([*encode_plain(tokenizer, "Hello", 9), end]),
        said(encode_plain(tokenizer, "Hello and", 9), "length"),
        said([*encode_plain(tokenizer, call, 9), end]),
        said(encode_plain(tokenizer, call + " and more", 9), "length"),
    ]
    chat = TokenChat(
        ScriptedSource(lambda ids, params: script.pop(0)), ChatRenderer.of(tokenizer, "hermes", LONG)
    )
    request = ChatRequest((Message.user("Q"),), TOOLS)
    reasons = [(await chat.complete(request)).call.finish_reason for _ in range(4)]
    assert reasons == ["stop", "length", "tool_calls", "length"]


async def test_a_stop_string_ends_the_answer_but_stays_in_the_tokens(bundled_home: Path) -> None:
    tokenizer = _tokenizer(bundled_home, FAMILIES[0])
    ids = encode_plain(tokenizer, "one STOP", 9)
    source = ScriptedSource(lambda prompt, params: said(ids))
    chat = TokenChat(source, ChatRenderer.of(tokenizer, "hermes", LONG))
    first = await chat.complete(ChatRequest((Message.user("Q"),), sampling=Sampling(stop=("STOP",))))
    assert first.message.content == "one "
    second = await chat.complete(ChatRequest((Message.user("Q"), first.message, Message.user("more"))))
    assert second.call.tokens is not None and first.call.tokens is not None
    seen = (*first.call.tokens.prompt_ids, *ids)
    assert second.call.tokens.prompt_ids[: len(seen)] == seen


async def test_a_sequence_never_outgrows_its_limit(bundled_home: Path) -> None:
    tokenizer = _tokenizer(bundled_home, FAMILIES[0])
    asked: list[int] = []

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        asked.append(params["max_tokens"])
        return said([100] * params["max_tokens"], "length")

    chat = TokenChat(ScriptedSource(answer), ChatRenderer.of(tokenizer, "hermes", 60))
    first = await chat.complete(ChatRequest((Message.user("Q"),), sampling=Sampling(max_tokens=500)))
    assert first.call.tokens is not None
    assert len(first.call.tokens.prompt_ids) + asked[0] == 60
    with pytest.raises(ContextOverflowError, match="60"):
        await chat.complete(ChatRequest((Message.user("Q"), first.message, Message.user("R"))))


async def test_two_conversations_through_one_model_do_not_mix(bundled_home: Path) -> None:
    """As a sub-agent's does with its parent's."""
    tokenizer = _tokenizer(bundled_home, FAMILIES[0])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    chat = TokenChat(
        ScriptedSource(lambda ids, params: said([*encode_plain(tokenizer, "Yes.", 2), end])),
        ChatRenderer.of(tokenizer, "hermes", LONG),
    )
    one, two = (Message.user("A"),), (Message.user("B"),)
    for _ in range(3):
        first = await chat.complete(ChatRequest(one))
        second = await chat.complete(ChatRequest(two))
        one, two = (*one, first.message, Message.user("A")), (*two, second.message, Message.user("B"))
    assert first.call.tokens and second.call.tokens
    texts = [tokenizer.decode(each.call.tokens.prompt_ids) for each in (first, second) if each.call.tokens]
    assert [text.count("user\nA<") for text in texts] == [3, 0]
    assert [text.count("user\nB<") for text in texts] == [0, 3]


async def test_another_parser_speaks_the_models_own_dialect(bundled_home: Path) -> None:
    qwen = next(family for family in FAMILIES if family.name == "qwen")
    tokenizer = _tokenizer(bundled_home, qwen)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    text = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    source = ScriptedSource(lambda ids, params: said([*encode_plain(tokenizer, text, 4), end]))
    chat = TokenChat(source, ChatRenderer.of(tokenizer, "qwen", LONG))
    first = await chat.complete(ChatRequest((Message.user("Q"),), TOOLS))
    (call,) = first.message.tool_calls
    told = Message.tool(call, "blue <|im_end|>")
    second = await chat.complete(ChatRequest((Message.user("Q"), first.message, told), TOOLS))
    assert first.call.tokens and second.call.tokens
    shown = tokenizer.decode(second.call.tokens.prompt_ids)
    assert '{"type": "function", "function": {"name": "look"' in shown
    assert "<tool_response>\nblue <|im_end|>\n</tool_response>" in shown
    # system, question, call, result (whose own special token is literal)
    assert second.call.tokens.prompt_ids.count(end) == 4
    assert len(build_sequences([first.call, second.call]).sequences) == 1


def test_a_template_without_tools_refuses_a_parser_of_a_models_own(bundled_home: Path) -> None:
    with pytest.raises(ConfigError, match="does not offer tools") as caught:
        ChatRenderer.of(_tokenizer(bundled_home, FAMILIES[0]), "llama3_json", LONG)
    assert "hermes" in caught.value.hint


def _target(base_url: str) -> ModelTarget:
    profile = ProviderSettings(base_url=base_url, max_retries=0)
    return ModelTarget("custom", "policy", base_url, None, None, profile)


@pytest.mark.parametrize("kind", [GenerateModel, CompletionModel])
async def test_both_wire_forms_carry_ids_and_logprobs(kind: type[Any], bundled_home: Path) -> None:
    tokenizer = _tokenizer(bundled_home, FAMILIES[0])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = [*encode_plain(tokenizer, "Hi ☕", 1), end]
    with TokenServer(lambda prompt, params: said(ids)) as server:
        source = kind(_target(server.base_url))
        chat = TokenChat(source, ChatRenderer.of(tokenizer, "hermes", LONG))
        sampling = Sampling(temperature=0.5, max_tokens=7, seed=3)
        reply = await chat.complete(ChatRequest((Message.user("Q"),), sampling=sampling))
        await source.close()
    path, body = server.requests[0]
    assert reply.message.content == "Hi ☕"
    assert reply.call.tokens is not None
    assert list(reply.call.tokens.sampled_ids) == ids
    assert reply.call.tokens.logprobs == tuple(said(ids).logprobs)
    assert reply.call.usage.output_tokens == len(ids)
    if kind is GenerateModel:
        assert path == "/generate"
        params = {"temperature": 0.5, "max_new_tokens": 7, "sampling_seed": 3, "skip_special_tokens": False}
        assert (body["sampling_params"], body["return_logprob"]) == (explicit_sampling(params), True)
        assert reply.call.tokens.policy_version == "step-7"
    else:
        assert (path, body["prompt"]) == ("/v1/completions", list(reply.call.tokens.prompt_ids))


@pytest.mark.parametrize("kind", [GenerateModel, CompletionModel])
async def test_no_sampling_parameter_is_left_to_the_defaults_of_the_server(kind: type[Any]) -> None:
    with TokenServer(lambda prompt, params: said([5])) as server:
        source = kind(_target(server.base_url))
        await source.complete_tokens([1, 2], Sampling(max_tokens=1))
        await source.complete_tokens([1, 2], Sampling(top_p=0.9, extra_body={"top_k": 7, "min_p": 0.1}))
        await source.close()
    whole, reshaped = (body.get("sampling_params", body) for _, body in server.requests)
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert defaults.items() <= whole.items()
    assert {**defaults, "top_p": 0.9, "top_k": 7, "min_p": 0.1}.items() <= reshaped.items()


async def test_a_generation_that_the_server_breaks_off_is_the_providers_failure() -> None:
    with TokenServer(lambda ids, params: said([], "abort")) as server:
        source = GenerateModel(_target(server.base_url))
        with pytest.raises(ProviderError, match="aborted") as caught:
            await source.complete_tokens([1, 2], Sampling())
        await source.close()
    assert caught.value.retryable


async def test_a_server_without_logprobs_is_named_in_the_error() -> None:
    from tests.fakes.provider import FakeProvider, text

    with FakeProvider([text("hello")]) as provider:
        source = CompletionModel(_target(provider.base_url))
        with pytest.raises(ProviderError, match="did not return"):
            await source.complete_tokens([1, 2], Sampling())
        await source.close()


@pytest.mark.slow
async def test_the_bundled_model_gives_its_tokens_the_logprobs_that_were_recorded(bundled_home: Path) -> None:
    """A rollout of several turns, scored again in one pass over the training sequence."""
    import torch
    from transformers import AutoModelForCausalLM

    from hermes.models.local.bundled import model_folder
    from hermes.models.local.model import load

    model = load("smollm2", model_folder(bundled_home))
    scorer = AutoModelForCausalLM.from_pretrained(model_folder(bundled_home), dtype=torch.float32).eval()
    with TokenServer(bundled_answers(model)) as server:
        source = GenerateModel(_target(server.base_url))
        chat = TokenChat(source, ChatRenderer.of(model.tokenizer, "hermes", 4096))
        messages = [Message.system("Be brief."), Message.user("Name a colour ☕.")]
        calls: list[ModelCall] = []
        for result in ("And another?", json.dumps({"said": "<|im_end|>"}), "Thanks."):
            reply = await chat.complete(
                ChatRequest(tuple(messages), TOOLS, Sampling(temperature=1.0, max_tokens=12))
            )
            calls.append(reply.call)
            messages += [reply.message, Message.user(result)]
        await source.close()
    (sequence,) = build_sequences(calls).sequences
    with torch.no_grad():
        logits = scorer(torch.tensor([sequence.tokens])).logits[0].float().log_softmax(-1)
    for place, (token, mask, logprob) in enumerate(
        zip(sequence.tokens, sequence.masks, sequence.logprobs, strict=True)
    ):
        if mask != MASKED:
            assert float(logits[place - 1, token]) == pytest.approx(logprob, abs=1e-3)
    assert sequence.trained_tokens >= 12


async def test_each_call_of_a_seeded_rollout_has_its_own_seed(bundled_home: Path) -> None:
    """The same seed twice would draw the same numbers twice."""
    tokenizer = _tokenizer(bundled_home, FAMILIES[0])
    ids = [*encode_plain(tokenizer, "Hi", 1), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    seeds = []
    for _ in range(2):
        with TokenServer(lambda prompt, params: said(ids)) as server:
            source = GenerateModel(_target(server.base_url))
            chat = TokenChat(source, ChatRenderer.of(tokenizer, "hermes", LONG))
            messages: tuple[Message, ...] = (Message.user("Q"),)
            for _ in range(3):
                reply = await chat.complete(ChatRequest(messages, sampling=Sampling(seed=3)))
                messages = (*messages, reply.message, Message.user("Go on"))
            await source.close()
        seeds.append([body["sampling_params"]["sampling_seed"] for _, body in server.requests])
    assert seeds[0] == seeds[1], "the same rollout again has the same seeds"
    assert seeds[0][0] == 3 and len(set(seeds[0])) == 3
