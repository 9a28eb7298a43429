"""Results of parallel calls lie in the order of their calls, whatever their durations."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from hermes.agent.build import RolloutPlan
from hermes.core import JSONObject, StepKind
from hermes.tools.base import Tool, Workbench
from tests.agent.conftest import World
from tests.fakes.provider import FakeProvider, Reply, text, tool_calls

TURNS = 20


async def _wait(arguments: JSONObject, bench: Workbench) -> str:
    await asyncio.sleep(arguments["pause_s"])
    return str(arguments["label"])


@pytest.mark.parametrize("conversations", [8, pytest.param(50, marks=pytest.mark.slow)])
async def test_every_turn_keeps_the_order_of_its_calls(
    world: Callable[..., World], conversations: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    schema: JSONObject = {"type": "object", "properties": {"pause_s": {"type": "number"}, "label": {}}}
    tools = [Tool(f"wait{n}", "test", "Waits.", schema, _wait) for n in range(2)]

    def answer(body: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if turn == TURNS:
            return text("done")
        return tool_calls(
            [
                (f"wait{draw.randrange(2)}", {"pause_s": draw.random() * 0.01, "label": f"{turn}.{number}"})
                for number in range(draw.randint(2, 5))
            ]
        )

    with FakeProvider(answer) as provider:
        plan = RolloutPlan(toolsets=(), extra_tools=tools)
        here = world(provider, plan=plan, settings={"limits.max_turns": TURNS + 1})
        asked = await asyncio.gather(*(here.ask(f"question {n}") for n in range(conversations)))
    turns = 0
    for steps, _, stored in asked:
        assert steps == list(stored.steps)
        for index, step in enumerate(steps):
            calls = step.message.tool_calls
            if step.kind is StepKind.MODEL and calls:
                turns += 1
                results = [later.message for later in steps[index + 1 : index + 1 + len(calls)]]
                assert [result.tool_call_id for result in results] == [call.id for call in calls]
                assert [result.content for result in results] == [
                    json.loads(call.arguments)["label"] for call in calls
                ]
    assert turns == conversations * TURNS
