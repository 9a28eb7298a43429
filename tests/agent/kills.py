"""Agents that are killed at random, and what the store has of them."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

from hermes.config.paths import db_path
from hermes.core import Message, StepKind, StopReason
from hermes.store import Reader
from hermes.store.sqlite import connect_reader
from tests.agent.conftest import World
from tests.fakes.provider import FakeProvider, text, tool_calls


def answer(request: dict[str, object]) -> object:
    """Two rounds of tools, then an answer; stateless, so that any number of agents can be killed."""
    messages: list[dict[str, object]] = request["messages"]  # type: ignore[assignment]
    rounds = sum(message["role"] == "tool" for message in messages)
    if rounds < 4:
        return tool_calls(
            [("calculator", {"expression": f"{rounds} + 1"}), ("calculator", {"expression": "2 ** 10"})]
        )
    return text("Done.")


class Elsewhere:
    """A provider in another process: all a child needs to know of it."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url


def work(home: Path, base_url: str, acknowledge: Connection) -> None:
    """Runs trajectory after trajectory, reporting each step after it was yielded, until it is killed."""

    async def forever() -> None:
        world = World(home, Elsewhere(base_url))  # type: ignore[arg-type]
        while True:
            async with world.agent() as loop:
                async for step in loop.turn(Message.user(f"go {time.time_ns()}")):
                    acknowledge.send((loop.recorder.header.id, step.index))

    asyncio.run(forever())


def kill_agents(tmp_path: Path, kills: int) -> int:
    """Kills agents at work and checks the store; how many steps were acknowledged."""
    home = tmp_path / "home"
    moments = random.Random(20261115)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.agent.test_crash", "openai"])
    acknowledged: set[tuple[str, int]] = set()
    with FakeProvider(answer) as provider:  # type: ignore[arg-type]
        for _ in range(kills):
            receiver, sender = context.Pipe(duplex=False)
            child = context.Process(target=work, args=(home, provider.base_url, sender))
            child.start()
            sender.close()
            acknowledged.add(receiver.recv())  # it works
            time.sleep(moments.uniform(0.0, 0.15))
            child.kill()
            child.join()
            while receiver.poll():
                try:
                    acknowledged.add(receiver.recv())
                except EOFError:
                    break
    assert len({trajectory for trajectory, _ in acknowledged}) >= kills
    connection = connect_reader(db_path(home))
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    stored: set[tuple[str, int]] = set()
    cut = 0
    with Reader(db_path(home)) as reader:
        for trajectory in reader.trajectories():
            assert trajectory.outcome is not None
            assert trajectory.outcome.stop_reason in (StopReason.CUT, StopReason.COMPLETED)
            cut += trajectory.outcome.stop_reason is StopReason.CUT
            stored |= {(trajectory.header.id, step.index) for step in trajectory.steps}
            for step in trajectory.steps:
                if step.kind is StepKind.MODEL:
                    assert reader.model_input(trajectory.header.id, step)[0]
    assert acknowledged <= stored
    assert cut >= kills * 0.8  # nearly every kill hit a trajectory at work
    return len(acknowledged)
