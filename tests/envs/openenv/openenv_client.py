"""Plays the environment of words.py by the clients of openenv-core; run by an interpreter that has it."""

from __future__ import annotations

import asyncio
import sys

from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


async def by_tools(url: str, answer: str) -> None:
    async with MCPToolClient(base_url=url) as env:
        first = await env.reset(seed=0)
        assert first.observation.metadata["prompt"] == "Task w1: look, and say the word."
        assert [tool.name for tool in await env.list_tools()] == ["look", "submit_answer"]
        assert await env.call_tool("look") == "word1"
        assert (await env.state()).step_count == 1
        last = await env.step(CallToolAction(tool_name="submit_answer", arguments={"answer": answer}))
        assert last.done
        print(last.reward)


async def by_messages(url: str) -> None:
    async with GenericEnvClient(base_url=url.replace("http://", "ws://")) as env:
        first = await env.reset(seed=1)
        assert first.observation["prompt"] == "Task w2: look, and say the word."
        action = {"type": "call_tool", "tool_name": "submit_answer", "arguments": {"answer": "word2"}}
        print((await env.step(action)).reward)


async def main(url: str) -> None:
    await by_tools(url, "word1")
    await by_tools(url, "word9")
    await by_messages(url)


asyncio.run(main(sys.argv[1]))
