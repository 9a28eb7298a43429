"""A scripted model at the agent's wheel: it decides its next call by the result of the last one."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.fakes.provider import FakeProvider, Reply, delayed, text, tool_calls
from tests.rl.world import hermes

Call = tuple[str, dict[str, Any]]
Pilot = Generator[Call, Any, None]
"""Yields tool calls, and is sent their results."""


class Script:
    """The model, and what it was told."""

    def __init__(self, pilot: Pilot) -> None:
        self.said: list[tuple[str, dict[str, Any], Any]] = []
        self._pilot = pilot
        self._call: Call | None = None

    def answer(self, request: dict[str, Any]) -> Reply:
        if self._call is None:
            return self._next(None)
        result = json.loads(request["messages"][-1]["content"])
        self.said.append((*self._call, result))
        return self._next(result)

    def _next(self, result: Any) -> Reply:
        try:
            self._call = self._pilot.send(result)
        except StopIteration:
            return text("The model is trained.")
        return delayed(0.3, tool_calls([self._call]))

    def results(self, tool: str) -> list[Any]:
        return [result for name, _, result in self.said if name == tool]


def ask(home: Path, provider: FakeProvider, task: str, **environ: str) -> Any:
    """`hermes rl TASK` with that model."""
    flags = ("--model", "pilot", "--base-url", provider.base_url)
    return hermes(home, "rl", task, *flags, env={"OPENAI_API_KEY": "k", **environ})


def drive(home: Path, pilot: Pilot, **environ: str) -> Script:
    """The whole task; what the tools said."""
    script = Script(pilot)
    with FakeProvider(script.answer) as provider:
        done = ask(home, provider, "Train the tiny model on letters", **environ)
    assert done.returncode == 0, done.stderr
    return script
