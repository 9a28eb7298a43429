"""Calls of the engine's OpenAI server."""

from __future__ import annotations

from typing import Any

from tests.engine.http.engine_process import Server


def generate(server: Server, **body: Any) -> Any:
    answer = server.ask("POST", "/generate", body)
    assert answer.status == 200, answer
    return answer.json()
