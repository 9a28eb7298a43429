from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hermes.agent.build import RolloutPlan, new_header, open_agent, open_writer
from hermes.agent.loop import AgentLoop
from hermes.config.load import Config, load
from hermes.config.paths import db_path
from hermes.core import JSON, Message, Outcome, Source, Step, Trajectory
from hermes.models.open import open_model
from hermes.store import Reader
from tests.fakes.provider import FakeProvider


@dataclass
class World:
    """A home of its own and a provider to talk to."""

    home: Path
    provider: FakeProvider
    settings: dict[str, JSON] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    plan: RolloutPlan = field(default_factory=lambda: RolloutPlan(toolsets=("math",)))

    def config(self) -> Config:
        environ = {"HERMES_HOME": str(self.home), "PATH": os.environ["PATH"], "HOME": str(self.home)}
        return load({"sandbox.backend": "local", **self.settings}, {**environ, **self.environ})

    @asynccontextmanager
    async def agent(self, **changes: object) -> AsyncIterator[AgentLoop]:
        config = self.config()
        model = open_model(config, "custom/test-model", self.provider.base_url)
        with open_writer(config) as writer:
            try:
                header = new_header(Source.QUERY, model)
                async with open_agent(config, writer, model, header, self.plan) as loop:
                    yield loop
            finally:
                await model.close()

    async def ask(self, question: str) -> tuple[list[Step], Outcome, Trajectory]:
        """One turn from start to end, and what the store says of it afterwards."""
        async with self.agent() as loop:
            loop.prepare(Message.system("Be brief."))
            steps = [step async for step in loop.turn(Message.user(question))]
            outcome = loop.outcome
        assert outcome is not None
        return steps, outcome, self.stored(loop.recorder.header.id)

    def stored(self, trajectory_id: str) -> Trajectory:
        with Reader(db_path(self.home)) as reader:
            return reader.get(trajectory_id)


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    def make(provider: FakeProvider, **known: object) -> World:
        return World(tmp_path / "home", provider, **known)  # type: ignore[arg-type]

    return make
