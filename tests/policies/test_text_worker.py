"""Who works on the tasks of `improve --text`: a model of this machine answers at an engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hermes.cli.policy.signal import open_worker
from hermes.config.load import load
from hermes.core import Message, Sampling
from hermes.models.base import ChatRequest
from hermes.models.remote.openai_chat import OpenAIChat


@pytest.mark.timeout(300)
def test_the_bundled_model_answers_several_at_once_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    notes: list[str] = []

    async def ask() -> list[str]:
        async with open_worker(load(), "hermes/smollm2", notes.append) as model:
            assert isinstance(model, OpenAIChat) and model.name == "hermes/smollm2"
            requests = [
                ChatRequest((Message.user(f"Say the number {n}."),), sampling=Sampling(max_tokens=8))
                for n in range(4)
            ]
            replies = await asyncio.gather(*(model.complete(request) for request in requests))
        return [reply.message.content for reply in replies]

    answers = asyncio.run(ask())
    assert len(answers) == 4 and all(answers)
    assert notes == ["starting an engine that serves hermes/smollm2"]
