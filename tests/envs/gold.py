"""Built-in environments to play: opened with a made-up policy, or with a perfect one behind a real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hermes.core import Message
from hermes.envs.builtin.calculator import CalculatorEnv
from hermes.envs.builtin.code_tests import CodeTestsEnv
from hermes.envs.builtin.format import FormatEnv
from hermes.envs.builtin.preference import PreferenceEnv
from hermes.envs.builtin.reasoning_puzzles import ReasoningGymEnv
from hermes.envs.builtin.solvable import SolvableEnv
from hermes.envs.builtin.terminal_tasks import TerminalTasksEnv
from hermes.envs.builtin.tool_calling import ToolCallingEnv
from hermes.envs.builtin.web_research import WebResearchEnv
from hermes.envs.builtin.word_limit import WordLimitEnv
from hermes.envs.builtin.word_problems import WordProblemsEnv
from hermes.envs.cli.sample_grader import ScriptedPolicy
from hermes.envs.rewards.result import RewardResult
from hermes.envs.servers.config import APIServerConfig
from tests.fakes.provider import Reply, text, tool_calls

SOLVABLE: tuple[type[SolvableEnv], ...] = (
    CalculatorEnv,
    ToolCallingEnv,
    WordProblemsEnv,
    TerminalTasksEnv,
    CodeTestsEnv,
    WebResearchEnv,
    WordLimitEnv,
    FormatEnv,
    ReasoningGymEnv,
)
EVERY = (*SOLVABLE, PreferenceEnv)
SILENCE = (Message.assistant(""),)


def settings(cls: type[Any], **given: Any) -> dict[str, Any]:
    return {"use_wandb": False, "train_size": 30, "eval_size": 10, **given}


@asynccontextmanager
async def rehearsal(cls: type[Any], home: Path, **given: Any) -> AsyncIterator[Any]:
    """An environment that is set up; `earn` plays turns in it."""
    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="openai", health_check=False)
    env = cls(cls.env_config_cls(**settings(cls, **given)), [server])
    await env.setup()
    env.rehearse(ScriptedPolicy(), home)
    try:
        yield env
    finally:
        await env.close()


async def earn(env: Any, item: Any, turns: Sequence[Message]) -> RewardResult:
    env._policy().turns = tuple(turns)
    scored = await env.run_item(item)
    reward: RewardResult = scored.reward
    return reward


class PerfectModel:
    """Answers requests of an OpenAI server as the gold turns of an environment's items say."""

    def __init__(self, env: SolvableEnv, items: Sequence[Any]) -> None:
        self._gold = {env.format_prompt(item): list(env.gold(item)) for item in items}

    def __call__(self, request: dict[str, Any]) -> Reply:
        messages = request["messages"]
        asked = max(index for index, message in enumerate(messages) if message["role"] == "user")
        said = sum(message["role"] == "assistant" for message in messages[asked:])
        turn = self._gold[messages[asked]["content"]][said]
        if not turn.tool_calls:
            return text(turn.content)
        calls = [(call.name, call.parsed()) for call in turn.tool_calls]
        if calls[0][0] == "web_extract":  # the page's address is the one that the search gave
            calls = [("web_extract", {"urls": [json.loads(messages[-1]["content"])[0]["url"]]})]
        return tool_calls(calls)
