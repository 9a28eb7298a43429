"""Agent environments: which tokens a trainer gets, and when there are none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hermes.core import Message, StopReason
from hermes.core.sequence import MASKED
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.failures import GroupDroppedError
from hermes.errors import ConfigError
from tests.envs.token_source import Answer, TokenServer, said
from tests.envs.world import FileEnv, call, make, policy, stored, writes
from tests.fakes.provider import FakeProvider, text, tool_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


async def test_a_chat_server_gives_data_but_nothing_to_train_on(
    home: Path,
) -> None:
    script = [tool_calls([("write_file", {"path": "out.txt", "content": "word0"})]), text("Done.")]
    with FakeProvider(script, loop=True) as provider:
        env = make(FileEnv, provider.base_url, server_type="openai", include_messages=True, group_size=1)
        await env.setup()
        item = await env.get_next_item()
        env.process_mode = True
        group, _ = await env.collect_trajectories(item)
        env.process_mode = False
        with pytest.raises(ConfigError, match="cannot be trained on") as caught:
            await env.collect_trajectories(item)
        await env.close()
    assert (group["tokens"], group["masks"], group["scores"]) == ([[]], [[]], [1.0])
    assert "gave no token ids" in group["overrides"][0]["not_trainable"]
    assert group["messages"][0][-1]["content"] == "Done."
    assert "sglang" in caught.value.hint


async def test_a_rollout_whose_history_is_rewritten_keeps_every_context(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The policy ends its turns with a mark that the template does not use, so each turn stands alone."""
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        text = writes("word0")(tokenizer.decode(ids))
        return said([*tokenizer(text, add_special_tokens=False)["input_ids"], end])

    with TokenServer(answer) as server:
        env = make(FileEnv, server.base_url, tokenizer)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert group["scores"] == [1.0] * 4
    assert group["group_overrides"] == {"group_size": 4}
    parts = [(each["part"], each["parts"]) for each in group["overrides"]]
    assert parts == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert len({each["trajectory_id"] for each in group["overrides"]}) == 2
    spoken = [tokenizer.decode([mask for mask in masks if mask != MASKED]) for masks in group["masks"]]
    assert spoken[1] == spoken[3] == "It is written.<|endoftext|>"


async def test_sequences_stay_below_the_trainers_limit(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    def endless(prompt: str) -> str:
        return call("terminal", command="echo again")

    with policy(tokenizer, endless) as server:
        env = make(FileEnv, server.base_url, tokenizer, group_size=1)
        env.max_token_len = 2500
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        env.max_token_len = 500
        with pytest.raises(GroupDroppedError, match="499") as caught:
            await env.collect_trajectories({"id": "long", "word": "w"})
        await env.close()
    assert caught.value.reason == "prompt too long"
    (ids,) = group["tokens"]
    assert 2000 < len(ids) < 2500
    recorded = next(each for each in stored(home) if each.header.task_id == "t0")
    assert recorded.outcome.stop_reason is StopReason.CONTEXT_FULL
    assert group["scores"] == [0.0]  # the policy's own doing, so it is scored


async def test_the_model_of_this_process_needs_no_server(bundled_home: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HERMES_HOME", str(bundled_home))

    class Chatty(FileEnv):
        default_toolsets = ()

        def opening(self, item: Any) -> list[Message]:
            return [Message.system("Answer with one word.")]

        def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return float(len(result.final_response) > 0)

    env = make(Chatty, "local", server_type="openai", group_size=2, max_token_length=8)
    env.server.servers[0].config.model_name = "hermes/smollm2"
    await env.setup()
    group, _ = await asyncio.wait_for(env.collect_trajectories(await env.get_next_item()), 60)
    await env.close()
    assert all(any(mask != MASKED for mask in masks) for masks in group["masks"])
    assert all(
        len(ids) == len(logs) for ids, logs in zip(group["tokens"], group["inference_logprobs"], strict=True)
    )
