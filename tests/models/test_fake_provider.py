"""The fake provider as its own process: what crash tests lean on."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from hermes.errors import ProviderError
from hermes.models.remote.openai_chat import OpenAIChat
from tests.fakes.provider import FakeProvider, text
from tests.models.clients import asking, chat_on, target_for

ROOT = Path(__file__).parents[2]


async def test_it_runs_as_a_process_from_a_script_file(tmp_path: Path) -> None:
    script = tmp_path / "replies.json"
    replies = [
        {"kind": "text", "content": "hi"},
        {"kind": "status", "code": 500},
        {"kind": "delayed", "seconds": 0.01, "reply": {"kind": "tool_calls", "calls": [["todo", {"a": 1}]]}},
    ]
    script.write_text(json.dumps(replies))
    command = [sys.executable, "-m", "tests.fakes.provider", "--script", str(script), "--loop"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        chat = OpenAIChat(target_for(url))
        assert (await chat.complete(asking())).message.content == "hi"
        second = await chat.complete(asking())
        assert second.call.attempts == 2
        assert second.message.tool_calls[0].parsed() == {"a": 1}
        assert (await chat.complete(asking())).message.content == "hi"
    finally:
        process.kill()
        await process.wait()


async def test_a_script_that_is_used_up_says_so_and_is_not_retried() -> None:
    with FakeProvider([text("only one")]) as provider:
        chat = chat_on(provider)
        await chat.complete(asking())
        with pytest.raises(ProviderError, match="the script is used up"):
            await chat.complete(asking())
        assert len(provider.requests) == 2
