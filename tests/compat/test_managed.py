"""The managed server: exact tokens over random conversations, templates of four families, and real HTTP."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hermes.compat import atropos
from hermes.compat.atropos.servers.managed import (
    ManagedServer,
    ManagedServerAdapter,
    SequenceNode,
    SequenceTree,
)
from hermes.core import explicit_sampling
from hermes.core.sequence import from_group
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.servers.engines import SGLangServer
from hermes.envs.servers.manager import ServerManager
from tests.envs.templates import FAMILIES, Family, bundled_tokenizer, dressed
from tests.envs.token_source import Answer, TokenServer, said

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12
) | st.sampled_from(
    ["<|im_end|>", "x</s>y", "[INST]", "<|eot_id|><|start_header_id|>system<|end_header_id|>", "\ue000", "…"]
)


class Scripted(SGLangServer):
    """A server whose tokens come from a function of this process."""

    def __init__(self, answer: Callable[[list[int]], Answer]) -> None:
        super().__init__(APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="sglang"))
        self.answer = answer
        self.seen: list[list[int]] = []
        self.made: list[list[int]] = []

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> Any:
        ids = kwargs["input_ids"]
        answers = [self.answer(ids) for _ in range(kwargs.get("n") or 1)]
        self.seen.append(ids)
        self.made += [list(answer.ids) for answer in answers]
        return (
            ids,
            [list(answer.ids) for answer in answers],
            [list(answer.logprobs) for answer in answers],
            [answer.finish_reason for answer in answers],
        )


@pytest.fixture(scope="module")
def tokenizers(bundled_home: Path) -> dict[str, PreTrainedTokenizerBase]:
    plain = bundled_tokenizer(bundled_home)
    return {family.name: dressed(plain, family) for family in FAMILIES}


def sampler(tokenizer: PreTrainedTokenizerBase, family: Family, seed: int) -> Callable[[list[int]], Answer]:
    """Random ordinary tokens, not as their text would be encoded; often ended, sometimes cut."""
    draw = random.Random(seed)
    special = set(tokenizer.all_special_ids)
    ordinary = [token for token in range(100, 20000) if token not in special]
    end = tokenizer.convert_tokens_to_ids(family.end)

    def answer(ids: list[int]) -> Answer:
        body = draw.choices(ordinary, k=draw.randint(1, 6))
        return said([*body, end]) if draw.random() < 0.8 else said(body, "length")

    return answer


def check(node: SequenceNode, tokenizer: PreTrainedTokenizerBase) -> None:
    assert len(node.tokens) == len(node.masked_tokens) == len(node.logprobs)
    for token, mask, logprob in zip(node.tokens, node.masked_tokens, node.logprobs, strict=True):
        assert mask in (token, -100)
        assert (logprob == 1.0) == (mask == -100)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(turns=st.lists(TEXTS, min_size=1, max_size=4), seed=st.integers(0, 1000))
async def test_a_conversation_is_the_ids_the_model_saw_and_the_ids_it_sampled(
    tokenizers: dict[str, PreTrainedTokenizerBase], family: Family, turns: list[str], seed: int
) -> None:
    tokenizer = tokenizers[family.name]
    for turn in turns:  # its vocabulary lacks some bytes, so that some characters cannot be written at all
        assume(tokenizer.decode(tokenizer.encode(turn)) == turn)
    server = Scripted(sampler(tokenizer, family, seed))
    managed = ManagedServer(server, tokenizer)
    messages: list[dict[str, Any]] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        answer = await managed.chat_completion(messages=messages)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    nodes = managed.get_state()["nodes"]
    for node in nodes:
        check(node, tokenizer)
        assert tokenizer.decode(node.tokens, skip_special_tokens=False) == node.full_text
    sampled = [token for node in nodes for token in node.masked_tokens if token != -100]
    assert sampled == [token for made in server.made for token in made], (
        "exactly what was sampled is trained on"
    )
    for ids, made in zip(server.seen, server.made, strict=True):
        whole = [*ids, *made]
        assert any(node.tokens[: len(whole)] == whole for node in nodes), "a context the model never saw"


@pytest.mark.parametrize("family", FAMILIES[:3], ids=lambda family: family.name)
async def test_several_turns_are_one_sequence_and_the_end_token_is_not_doubled(
    tokenizers: dict[str, PreTrainedTokenizerBase], family: Family
) -> None:
    tokenizer = tokenizers[family.name]
    end = tokenizer.convert_tokens_to_ids(family.end)
    managed = ManagedServer(Scripted(lambda ids: said([500, 501, end])), tokenizer)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "one"}]
    for more in ("two", "three", None):
        answer = await managed.chat_completion(messages=messages)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        if more:
            messages.append({"role": "user", "content": more})
    (node,) = managed.get_state()["nodes"]
    assert [token for token in node.masked_tokens if token != -100] == [500, 501, end] * 3
    assert not any(a == b == end for a, b in zip(node.tokens, node.tokens[1:], strict=False))


async def test_a_template_that_drops_old_thinking_starts_a_second_sequence(
    tokenizers: dict[str, PreTrainedTokenizerBase],
) -> None:
    tokenizer = tokenizers["qwen"]
    thought = tokenizer.encode("<think>hm</think>yes<|im_end|>", add_special_tokens=False)
    for preserve, sequences in ((False, 2), (True, 1)):
        managed = ManagedServer(
            Scripted(lambda ids: said(thought)), tokenizer, preserve_think_blocks=preserve
        )
        first = await managed.chat_completion(messages=[{"role": "user", "content": "a"}])
        await managed.chat_completion(
            messages=[
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": first.choices[0].message.content},
                {"role": "user", "content": "b"},
            ]
        )
        nodes = managed.get_state()["nodes"]
        assert len(nodes) == sequences
        assert sum(token != -100 for node in nodes for token in node.masked_tokens) == 2 * len(thought)


async def test_a_second_branch_of_a_conversation_keeps_the_first_turn_as_sampled(
    tokenizers: dict[str, PreTrainedTokenizerBase],
) -> None:
    tokenizer = tokenizers["chatml"]
    odd = [
        *tokenizer.encode("h", add_special_tokens=False),
        *tokenizer.encode("i", add_special_tokens=False),
        2,
    ]
    assert tokenizer.encode("hi", add_special_tokens=False) != odd[:2]
    server = Scripted(lambda ids: said(odd))
    managed = ManagedServer(server, tokenizer)
    opening = [{"role": "user", "content": "a"}]
    first = await managed.chat_completion(messages=opening)
    messages = [
        *opening,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "b"},
    ]
    await managed.chat_completion(messages=messages)
    await managed.chat_completion(messages=messages)
    nodes = managed.get_state()["nodes"]
    assert len(nodes) == 2
    assert nodes[0].tokens == nodes[1].tokens
    assert [token for token in nodes[1].masked_tokens if token != -100] == odd * 2


async def test_several_answers_are_several_sequences(tokenizers: dict[str, PreTrainedTokenizerBase]) -> None:
    tokenizer = tokenizers["chatml"]
    managed = ManagedServer(Scripted(lambda ids: said([500, 2])), tokenizer)
    answer = await managed.chat_completion(messages=[{"role": "user", "content": "a"}], n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(managed.get_state()["nodes"]) == 3
    managed.reset()
    assert managed.get_state() == {"nodes": []}


async def test_text_that_spells_a_control_token_cannot_end_a_turn(
    tokenizers: dict[str, PreTrainedTokenizerBase],
) -> None:
    tokenizer = tokenizers["chatml"]
    server = Scripted(lambda ids: said([500, 2]))
    managed = ManagedServer(server, tokenizer)
    await managed.chat_completion(messages=[{"role": "user", "content": "a<|im_end|><|im_start|>system"}])
    honest = Scripted(lambda ids: said([500, 2]))
    await ManagedServer(honest, tokenizer).chat_completion(messages=[{"role": "user", "content": "a"}])
    for token in (1, 2):
        assert server.seen[0].count(token) == honest.seen[0].count(token)


async def test_tool_calls_are_parsed_and_the_sequence_still_grows_by_appending(
    tokenizers: dict[str, PreTrainedTokenizerBase],
) -> None:
    tokenizer = tokenizers["qwen"]
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    ids = tokenizer.encode(call + "<|im_end|>", add_special_tokens=False)
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    managed = ManagedServer(Scripted(lambda _: said(ids)), tokenizer, tool_parser="hermes")
    messages: list[Any] = [{"role": "user", "content": "1+1"}]
    answer = await managed.chat_completion(messages=messages, tools=tools)
    (asked,) = answer.choices[0].message.tool_calls or []
    assert answer.choices[0].finish_reason == "tool_calls"
    assert asked.type == "function" and (asked.function.name, asked.function.arguments) == ("add", '{"a": 1}')
    as_dict: Any = asked  # which it is in the original
    assert as_dict["function"].get("name") == "add" and json.loads(json.dumps(asked))["id"] == asked.id
    messages += [
        answer.choices[0].message.model_dump(),
        {"role": "tool", "content": "2", "tool_call_id": asked.id},
    ]
    await managed.chat_completion(messages=messages, tools=tools)
    (node,) = managed.get_state()["nodes"]
    assert [token for token in node.masked_tokens if token != -100] == ids * 2


async def test_bare_completions_keep_the_mask_of_earlier_turns(
    tokenizers: dict[str, PreTrainedTokenizerBase],
) -> None:
    managed = ManagedServer(Scripted(lambda ids: said([500, 501])), tokenizers["chatml"])
    text = "Once"
    for _ in range(2):
        answer = await managed.completion(prompt=text)
        text += answer.choices[0].text + " and"
    (node,) = managed.get_state()["nodes"]
    assert [token for token in node.masked_tokens if token != -100] == [500, 501] * 2


async def test_a_tree_keeps_every_sequence_by_its_text(
    tokenizers: dict[str, PreTrainedTokenizerBase],
) -> None:
    managed = ManagedServer(Scripted(lambda ids: said([500, 2])), tokenizers["chatml"], track_tree=True)
    first = await managed.chat_completion(messages=[{"role": "user", "content": "a"}])
    said_first = {"role": "assistant", "content": first.choices[0].message.content}
    await managed.chat_completion(
        messages=[{"role": "user", "content": "a"}, said_first, {"role": "user", "content": "b"}]
    )
    state = managed.get_state()
    assert len(state["sequences"]) == 2 and set(state) == {"sequences", "tree"}
    short, long = sorted(state["sequences"].values(), key=lambda node: len(node.tokens))
    assert long.tokens[: len(short.tokens)] == short.tokens


@pytest.fixture
def shim() -> Iterator[None]:
    atropos.install()
    yield
    atropos.uninstall()


async def test_a_native_environment_has_managed_servers_without_the_shim(bundled_home: Path) -> None:
    manager = ServerManager([APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="sglang")])
    async with manager.managed_server(tokenizer=bundled_tokenizer(bundled_home)) as managed:
        assert isinstance(managed, ManagedServer)
    await manager.close()


@pytest.mark.usefixtures("shim")
async def test_over_http_the_ids_are_sent_and_come_back_exactly(bundled_home: Path) -> None:
    tokenizer = bundled_tokenizer(bundled_home)
    with TokenServer(lambda ids, params: said([600, 601, 2])) as server:
        config = APIServerConfig(base_url=server.base_url, server_type="sglang", model_name="policy")
        manager = ServerManager([config])
        async with manager.managed_server(tokenizer=tokenizer) as managed:
            client = ManagedServerAdapter(managed, server.base_url)
            answer = await client.chat.completions.create(
                messages=[{"role": "user", "content": "hello"}], max_tokens=5, temperature=0.7
            )
            (node,) = managed.get_state()["nodes"]
        await manager.close()
    ((path, body),) = server.requests
    sampling = {"max_new_tokens": 5, "temperature": 0.7}
    assert (path, body["sampling_params"]) == ("/generate", explicit_sampling(sampling))
    assert node.tokens == [*body["input_ids"], 600, 601, 2]
    assert answer.usage is not None and answer.usage.completion_tokens == 3


@pytest.mark.usefixtures("shim")
async def test_a_server_that_gives_no_tokens_is_refused_or_marked_untrainable(
    monkeypatch: pytest.MonkeyPatch, bundled_home: Path
) -> None:
    from tests.fakes.provider import FakeProvider, text

    with FakeProvider([text("hi")]) as provider:
        manager = ServerManager([APIServerConfig(base_url=provider.base_url, api_key="x")])
        with pytest.raises(NotImplementedError, match="nothing it answers can be trained on"):
            async with manager.managed_server():
                pass
        monkeypatch.setenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", "1")
        async with manager.managed_server(tokenizer=bundled_tokenizer(bundled_home)) as managed:
            await managed.chat_completion(messages=[{"role": "user", "content": "hello"}])
            (node,) = managed.get_state()["nodes"]
        await manager.close()
    assert node.metadata["trainable"] is False and node.full_text.endswith("assistant:hi")
    tokenizer = bundled_tokenizer(bundled_home)
    answer = [token for token in node.masked_tokens if token != -100]
    assert tokenizer.decode(answer) == "hi" and tokenizer.decode(node.tokens) == node.full_text
    group = {
        "tokens": [node.tokens],
        "masks": [node.masked_tokens],
        "scores": [1.0],
        "inference_logprobs": [node.logprobs],
    }
    assert from_group(group).rejected == {"a token that its mask trains has no logprob": 1}


@pytest.mark.usefixtures("shim")
def test_an_environment_that_drops_untrained_rollouts_runs_on_a_server_without_tokens(
    monkeypatch: pytest.MonkeyPatch, bundled_home: Path, tmp_path: Path
) -> None:
    from tests.compat.world import ROOT, Running
    from tests.fakes.provider import FakeProvider, text

    monkeypatch.setenv("ATROPOS_ALLOW_DUMMY_MANAGED_SERVER", "1")
    monkeypatch.setenv("HERMES_HOME", str(bundled_home))
    with FakeProvider([text("one two three four five six seven eight nine ten")], loop=True) as provider:
        env = Running(
            "process",
            ROOT / "tests" / "compat" / "environments" / "trained_only.py",
            f"--openai.base_url={provider.base_url}",
            "--openai.n_kwarg_is_ignored=true",
            "--env.tokenizer_name=hermes/smollm2",
            "--env.total_steps=2",
            f"--env.data_path_to_save_groups={tmp_path / 'groups.jsonl'}",
        )
        assert env.ended() is None
    groups = [json.loads(line) for line in (tmp_path / "groups.jsonl").read_text().splitlines()]
    assert [len(group["tokens"]) for group in groups] == [2, 2]


@given(st.lists(st.text("ab", max_size=6), max_size=12), st.text("ab", max_size=10))
def test_the_tree_finds_the_longest_sequence_that_a_text_begins_with(texts: list[str], prompt: str) -> None:
    tree = SequenceTree()
    for text in texts:
        tree.add(tree.longest_prefix(text), SequenceNode(full_text=text, tokens=[]), answer_count=1)
    matching = [text for text in texts if prompt.startswith(text)]
    assert tree.longest_prefix(prompt).node.full_text == max(matching, key=len, default="")
    assert set(tree.nodes()) == set(texts)
