"""A program of a stranger, and a policy that says what a test gives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes.envs.builtin.program import ProgramEnv
from tests.envs.token_source import Answer, TokenServer, Words, said

Make = Callable[..., ProgramEnv]
AGENT = Path(__file__).parent / "agent.py"
END = "<|im_end|>"
WRITE = '<tool_call>\n{"name": "shell", "arguments": {"command": "echo 7 > answer.txt", "why": "asked"}}\n'
TURNS = (f"I will.\n{WRITE}</tool_call>{END}", f" Done. {END}")


def policy(words: Words, *turns: str) -> TokenServer:
    """Says the turns of a conversation in order; how many it said, the prompt shows."""

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        spoken = words.decode(ids).count("<|im_start|>assistant") - 1
        return said(words.encode(turns[min(spoken, len(turns) - 1)]))

    return TokenServer(answer)


async def group_of(env: ProgramEnv) -> Any:
    try:
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
    finally:
        await env.close()
    return group
