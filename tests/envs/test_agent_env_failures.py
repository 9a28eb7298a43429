"""Agent environments: what has no reward is dropped with a reason, or tried again, and never scored."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hermes.config.paths import db_path
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.failures import GroupDroppedError
from hermes.envs.rewards.result import RewardResult
from hermes.errors import ProviderError
from hermes.store import Filter, Reader
from tests.envs.token_source import Answer, TokenServer, said
from tests.envs.world import FileEnv, make, policy, stored

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: math.nan, "nan"),
        (lambda: "0.5", "'0.5'"),
        (lambda: None, "None"),
        (lambda: 1.5, "outside of 0 … 1"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_a_reward_that_is_none_drops_the_group_and_is_never_zero(
    home: Path, tokenizer: PreTrainedTokenizerBase, wrong: Any, words: str
) -> None:
    class Broken(FileEnv):
        default_toolsets = ()

        def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return wrong()

    with policy(tokenizer, lambda prompt: "Hello.") as server:
        env = make(Broken, server.base_url, tokenizer)
        await env.setup()
        with pytest.raises(GroupDroppedError, match=words) as caught:
            await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert caught.value.reason == "grader"
    assert env.rollout_failures == {"grader": 2}
    with Reader(db_path(home)) as reader:
        assert (reader.count(Filter(source="env")), reader.count(Filter(max_reward=1.0))) == (4, 0)


async def test_a_server_that_fails_once_costs_a_retry_and_nothing_else(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    failures = iter([400])

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        if status := next(failures, 0):
            return Answer([], [], status=status)
        return said([*tokenizer("Hello.")["input_ids"], end])

    class Lenient(FileEnv):
        default_toolsets = ()

        def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return RewardResult(0.5, {"style": 0.25}, "half")

    with TokenServer(answer) as server:
        env = make(Lenient, server.base_url, tokenizer)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert group["scores"] == [0.5, 0.5]
    outcomes = sorted(each.outcome.stop_reason.value for each in stored(home))
    assert outcomes == ["completed", "completed", "error"]


async def test_a_server_that_is_down_is_an_infrastructure_failure(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    with policy(tokenizer, lambda prompt: "") as server:
        url = server.base_url
    env = make(FileEnv, url, tokenizer, group_size=1, terminal_lifetime=30)
    await env.setup()
    with pytest.raises(ProviderError, match="connection refused"):
        await env.collect_trajectories(await env.get_next_item())
    await env.close()
    assert env.rollout_failures == {"provider": 1}


async def test_a_rollout_that_ran_out_of_time_is_not_scored(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    over = threading.Event()

    def hang(prompt: str) -> str:
        over.wait(30)
        return "Too late."

    with policy(tokenizer, hang) as server:
        env = make(FileEnv, server.base_url, tokenizer, group_size=1, terminal_lifetime=1)
        await env.setup()
        with pytest.raises(GroupDroppedError, match="time limit of 1 s") as caught:
            await env.collect_trajectories(await env.get_next_item())
        over.set()
        await env.close()
    assert caught.value.reason == "timeout"
    assert env.rollout_failures == {"timeout": 1}
