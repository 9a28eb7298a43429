"""The loop against a real endpoint: what happens, what is recorded, how each way of ending is called."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
from collections.abc import Callable

import pytest

from hermes.agent.build import RolloutPlan
from hermes.config.paths import db_path
from hermes.core import (
    Boundary,
    JSONObject,
    Message,
    Role,
    Step,
    StepKind,
    StopReason,
    ToolCall,
    ToolErrorKind,
)
from hermes.core.model_call import INTERRUPTED
from hermes.errors import StoreError
from hermes.models.base import StreamDelta
from hermes.store import Reader
from hermes.tools.base import Tool, Workbench
from tests.agent.conftest import World
from tests.fakes.provider import FakeProvider, Reply, hang, slow, status, text, tokens, tool_calls

MakeWorld = Callable[..., World]
SUM = ("calculator", {"expression": "2 + 2"})


async def test_an_answer_without_tools_completes(world: MakeWorld) -> None:
    with FakeProvider([text("Four.")]) as provider:
        steps, outcome, stored = await world(provider).ask("What is 2 + 2?")
    assert [step.kind for step in steps] == [StepKind.INPUT, StepKind.INPUT, StepKind.MODEL]
    assert outcome.stop_reason is StopReason.COMPLETED
    assert stored.outcome == outcome
    assert stored.answer == "Four."
    assert list(stored.steps) == steps


async def test_a_tool_call_is_run_and_its_result_goes_back_to_the_model(world: MakeWorld) -> None:
    with FakeProvider([tool_calls([SUM]), text("It is 4.")]) as provider:
        _, outcome, stored = await world(provider).ask("What is 2 + 2?")
        second = provider.requests[1].json["messages"]
    assert outcome.stop_reason is StopReason.COMPLETED
    assert [message["role"] for message in second] == ["system", "user", "assistant", "tool"]
    assert second[3]["content"] == "4"
    assert second[3]["tool_call_id"] == second[2]["tool_calls"][0]["id"]
    assert [step.kind.value for step in stored.steps] == ["input", "input", "model", "tool", "model"]
    assert stored.steps[3].result is not None
    assert stored.steps[3].result.ok


async def test_each_call_is_stored_with_exactly_what_the_model_saw(world: MakeWorld) -> None:
    with FakeProvider([tool_calls([SUM]), text("It is 4.")]) as provider:
        here = world(provider)
        _, _, stored = await here.ask("What is 2 + 2?")
        requests = [request.json for request in provider.requests]
    with Reader(db_path(here.home)) as reader:
        models = [step for step in stored.steps if step.kind is StepKind.MODEL]
        for step, request in zip(models, requests, strict=True):
            seen, tools = reader.model_input(stored.header.id, step)
            assert [message.content for message in seen] == [
                m.get("content") or "" for m in request["messages"]
            ]
            assert [message.role.value for message in seen] == [m["role"] for m in request["messages"]]
            assert [dict(tool) for tool in tools] == [tool["function"] for tool in request["tools"]]


def _meeting_tool(name: str, arrived: asyncio.Barrier) -> Tool:
    async def handler(arguments: JSONObject, bench: Workbench) -> str:
        await arrived.wait()
        await asyncio.sleep(arguments["pause_s"])
        return f"{name} done"

    schema: JSONObject = {"type": "object", "properties": {"pause_s": {"type": "number"}}}
    return Tool(name, "test", "Waits until the others run too.", schema, handler, timeout_s=20)


async def test_parallel_calls_run_at_the_same_time_and_keep_their_order(world: MakeWorld) -> None:
    together = asyncio.Barrier(3)
    tools = [_meeting_tool(name, together) for name in ("one", "two", "three")]
    calls = [("one", {"pause_s": 0.2}), ("two", {"pause_s": 0.1}), ("three", {"pause_s": 0.0})]
    with FakeProvider([tool_calls(calls), text("ok")]) as provider:
        here = world(provider, plan=RolloutPlan(toolsets=(), extra_tools=tools))
        steps, outcome, stored = await here.ask("go")
        sent = [message["content"] for message in provider.requests[1].json["messages"][3:]]
    assert outcome.stop_reason is StopReason.COMPLETED
    assert sent == ["one done", "two done", "three done"]
    assert [step.message.name for step in stored.steps if step.result] == ["one", "two", "three"]
    assert steps == list(stored.steps)


async def test_a_malformed_call_an_unknown_tool_and_a_good_one_each_get_their_own_result(
    world: MakeWorld,
) -> None:
    calls = [("calculator", '{"expression": '), ("no_such_tool", {}), SUM]
    with FakeProvider([tool_calls(calls), text("ok")]) as provider:
        _, outcome, stored = await world(provider).ask("go")
    results = [step.result for step in stored.steps if step.result]
    assert [result.error_kind for result in results] == [
        ToolErrorKind.BAD_ARGUMENTS,
        ToolErrorKind.UNKNOWN_TOOL,
        None,
    ]
    assert stored.steps[2].message.tool_calls[0].arguments == '{"expression": '
    assert outcome.stop_reason is StopReason.COMPLETED


@pytest.mark.parametrize(
    ("script", "stop", "boundary"),
    [
        ([status(401)], StopReason.ERROR, Boundary.PROVIDER),
        (
            [status(400, message="maximum context length is 10 tokens")],
            StopReason.CONTEXT_FULL,
            Boundary.LIMIT,
        ),
        ([text("half an ans", finish_reason="length")], StopReason.TRUNCATED, Boundary.LIMIT),
        ([text("", finish_reason="content_filter")], StopReason.FILTERED, Boundary.PROVIDER),
    ],
)
async def test_each_way_of_failing_has_its_own_outcome(
    world: MakeWorld, script: list[object], stop: StopReason, boundary: Boundary
) -> None:
    with FakeProvider(script) as provider:  # type: ignore[arg-type]
        _, outcome, stored = await world(provider).ask("hello")
    assert (outcome.stop_reason, outcome.boundary) == (stop, boundary)
    assert stored.outcome == outcome
    assert outcome.infrastructure == (boundary is Boundary.PROVIDER)


async def test_the_turn_limit_ends_a_model_that_never_stops(world: MakeWorld) -> None:
    with FakeProvider([tool_calls([SUM])], loop=True) as provider:
        _, outcome, stored = await world(provider, settings={"limits.max_turns": 3}).ask("loop")
        assert len(provider.requests) == 3
    assert (outcome.stop_reason, outcome.boundary) == (StopReason.MAX_TURNS, Boundary.LIMIT)
    assert stored.turns == 3


async def test_the_token_limit_is_checked_before_the_next_call(world: MakeWorld) -> None:
    usage = {"prompt_tokens": 80, "completion_tokens": 20, "total_tokens": 100}
    with FakeProvider([tool_calls([SUM], usage=usage), text("never asked")]) as provider:
        _, outcome, _ = await world(provider, settings={"limits.max_tokens": 100}).ask("go")
        assert len(provider.requests) == 1
    assert outcome.stop_reason is StopReason.MAX_TOKENS


async def test_the_cost_limit_is_checked_before_the_next_call(world: MakeWorld) -> None:
    usage = {"prompt_tokens": 500_000, "completion_tokens": 0, "total_tokens": 500_000}
    priced = {"prices": {"test-model": {"input": 2.0, "output": 0.0}}, "limits.max_cost_usd": 1.0}
    with FakeProvider([tool_calls([SUM], usage=usage), text("never asked")]) as provider:
        _, outcome, stored = await world(provider, settings=priced).ask("go")
        assert len(provider.requests) == 1
    assert outcome.stop_reason is StopReason.MAX_COST
    assert stored.cost_usd == pytest.approx(1.0)


async def test_a_cost_limit_refuses_a_model_whose_price_is_unknown_before_any_call(world: MakeWorld) -> None:
    environ = {"OPENAI_API_KEY": "sk-0123456789"}  # without one, a model on loopback costs nothing
    with FakeProvider([text("never asked")]) as provider:
        _, outcome, _ = await world(provider, settings={"limits.max_cost_usd": 1.0}, environ=environ).ask(
            "go"
        )
        assert provider.requests == []
    assert outcome.stop_reason is StopReason.MAX_COST
    assert "price" in (outcome.detail or "")


async def test_the_wall_clock_ends_a_hanging_call(world: MakeWorld) -> None:
    with FakeProvider([hang(60)]) as provider:
        _, outcome, stored = await world(provider, settings={"limits.timeout_s": 0.5}).ask("hello")
    assert (outcome.stop_reason, outcome.boundary) == (StopReason.TIMEOUT, Boundary.LIMIT)
    assert stored.outcome == outcome


async def test_the_wall_clock_ends_a_hanging_tool(world: MakeWorld) -> None:
    stuck = _meeting_tool("stuck", asyncio.Barrier(2))
    with FakeProvider([tool_calls([("stuck", {"pause_s": 0}), ("missing", {})])]) as provider:
        here = world(
            provider, settings={"limits.timeout_s": 0.5}, plan=RolloutPlan(toolsets=(), extra_tools=[stuck])
        )
        steps, outcome, stored = await here.ask("hello")
    assert outcome.stop_reason is StopReason.TIMEOUT
    assert steps == list(stored.steps)
    results = [step.result for step in stored.steps if step.result]
    assert [result.name for result in results] == ["stuck", "missing"]
    assert [result.error_kind for result in results] == [ToolErrorKind.CANCELLED, ToolErrorKind.UNKNOWN_TOOL]


async def test_token_ids_and_logprobs_are_kept_where_the_server_gives_them(world: MakeWorld) -> None:
    with FakeProvider([tokens([5, 6], [-0.25, -0.5], text="hi")]) as provider:
        _, _, stored = await world(provider).ask("hello")
    trace = stored.steps[-1].call.tokens  # type: ignore[union-attr]
    assert trace is not None
    assert (trace.sampled_ids, trace.logprobs) == ((5, 6), (-0.25, -0.5))


async def test_a_cancelled_turn_is_recorded_and_the_conversation_goes_on(world: MakeWorld) -> None:
    stuck = _meeting_tool("stuck", asyncio.Barrier(2))
    with FakeProvider([tool_calls([("stuck", {"pause_s": 0}), ("missing", {})]), text("Fine.")]) as provider:
        here = world(provider, plan=RolloutPlan(toolsets=(), extra_tools=[stuck]))
        async with here.agent() as loop:

            async def first_turn() -> None:
                async for _ in loop.turn(Message.user("go")):
                    pass

            task = asyncio.create_task(first_turn())
            while not loop.recorder.begun or len(here.stored(loop.recorder.header.id).steps) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the second call has its result, and the first has none
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert loop.outcome is not None
            assert (loop.outcome.stop_reason, loop.outcome.boundary) == (StopReason.CANCELLED, Boundary.USER)
            steps = [step async for step in loop.turn(Message.user("never mind"))]
            assert loop.outcome.stop_reason is StopReason.COMPLETED
        sent = provider.requests[1].json["messages"]
    assert steps[0].result is not None
    assert steps[0].result.error_kind is ToolErrorKind.CANCELLED
    # every call has a result, in the calls' order: nothing a provider would refuse
    call_ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert [m["tool_call_id"] for m in sent if m["role"] == "tool"] == call_ids
    stored = here.stored(loop.recorder.header.id)
    assert [step.result.call_id for step in stored.steps if step.result] == call_ids
    assert stored.answer == "Fine."


async def test_a_turn_may_be_cancelled_at_any_moment_and_each_step_is_recorded_once(world: MakeWorld) -> None:
    seed = secrets.randbelow(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)

    def reply(request: JSONObject) -> Reply:
        done = request["messages"][-1]["role"] == "tool"
        return text("Fine.") if done else tool_calls([("missing", {}), SUM, ("missing", {})])

    with FakeProvider(reply) as provider:
        here = world(provider)
        async with here.agent() as loop:

            async def take_turn(number: int) -> None:
                async for _ in loop.turn(Message.user(f"question {number}")):
                    pass

            for number in range(40):
                turn = asyncio.create_task(take_turn(number))
                await asyncio.sleep(chance.uniform(0, 0.03))
                turn.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await turn
            await take_turn(40)
    stored = here.stored(loop.recorder.header.id)
    assert list(stored.messages) == loop.messages
    assert [step.index for step in stored.steps] == list(range(len(stored.steps)))
    assert stored.answer == "Fine."


async def test_a_history_that_ends_in_open_calls_is_recorded_with_their_results_in_place(
    world: MakeWorld,
) -> None:
    first, second = (ToolCall(name, "calculator", '{"expression": "1"}') for name in ("first", "second"))
    with FakeProvider([text("Fine.")]) as provider:
        here = world(provider)
        async with here.agent() as loop:
            for message in (
                Message.user("go"),
                Message.assistant(tool_calls=(first, second)),
                Message.tool(second, "1"),
            ):
                loop.prepare(message)
            steps = [step async for step in loop.turn(Message.user("and now?"))]
        sent = provider.requests[0].json["messages"]
    stored = here.stored(loop.recorder.header.id)
    assert [m.get("tool_call_id") for m in sent] == [None, None, "first", "second", None]
    assert [message.tool_call_id for message in stored.messages] == [
        None,
        None,
        "first",
        "second",
        None,
        None,
    ]
    assert steps == list(stored.steps)


async def test_a_conversation_of_several_turns_is_one_trajectory(world: MakeWorld) -> None:
    with FakeProvider([text("One."), text("Two.")]) as provider:
        here = world(provider)
        async with here.agent() as loop:
            for question in ("first?", "second?"):
                async for _ in loop.turn(Message.user(question)):
                    pass
    stored = here.stored(loop.recorder.header.id)
    assert [message.content for message in stored.messages] == ["first?", "One.", "second?", "Two."]
    assert stored.turns == 2


async def test_a_conversation_that_never_starts_leaves_no_trace(world: MakeWorld) -> None:
    with FakeProvider([]) as provider:
        here = world(provider)
        async with here.agent() as loop:
            loop.prepare(Message.system("hello"))
    with Reader(db_path(here.home)) as reader:
        assert reader.summaries() == []


async def test_every_step_is_readable_by_another_process_before_the_next_one_begins(world: MakeWorld) -> None:
    with FakeProvider([tool_calls([SUM]), text("4")]) as provider:
        here = world(provider)
        async with here.agent() as loop:
            seen: list[Step] = []
            async for step in loop.turn(Message.user("go")):
                seen.append(step)
                assert list(here.stored(loop.recorder.header.id).steps) == seen


async def test_a_store_that_stops_working_stops_the_agent(world: MakeWorld) -> None:
    with FakeProvider([text("hi")]) as provider:
        here = world(provider)
        with pytest.raises(StoreError):
            async with here.agent() as loop:
                loop.recorder._writer.close()
                async for _ in loop.turn(Message.user("go")):
                    pass
        assert provider.requests == []


async def test_ephemeral_examples_are_shown_to_the_model_but_left_out_of_the_conversation(
    world: MakeWorld,
) -> None:
    with FakeProvider([text("4")]) as provider:
        here = world(provider)
        async with here.agent() as loop:
            loop.prepare(Message.user("What is 1 + 1?"), ephemeral=True)
            shown = ToolCall("example", "calculator", '{"expression": "1 + 1"}')
            loop.prepare(Message.assistant(tool_calls=(shown,)), ephemeral=True)  # an example may end so
            async for _ in loop.turn(Message.user("What is 2 + 2?")):
                pass
        assert len(provider.requests[0].json["messages"]) == 3
    stored = here.stored(loop.recorder.header.id)
    assert [message.content for message in stored.messages] == ["What is 2 + 2?", "4"]
    with Reader(db_path(here.home)) as reader:
        assert len(reader.model_input(stored.header.id, stored.steps[-1])[0]) == 3


async def test_a_sub_agent_works_in_its_own_linked_trajectory(world: MakeWorld) -> None:
    def answer(request: JSONObject) -> object:
        last = request["messages"][-1]
        if last["role"] == "tool":
            return text(f"The helper says: {last['content']}")
        if last["content"] == "Count the files.":
            return text("Three files.")
        return tool_calls([("delegate_task", {"task": "Count the files."})])

    with FakeProvider(answer) as provider:  # type: ignore[arg-type]
        here = world(provider, plan=RolloutPlan(toolsets=("delegation", "math")))
        _, outcome, stored = await here.ask("How many files?")
        child_tools = [t["function"]["name"] for t in provider.requests[1].json["tools"]]
    assert outcome.stop_reason is StopReason.COMPLETED
    assert stored.answer == "The helper says: Three files."
    assert child_tools == ["calculator"]  # a sub-agent does not delegate further
    with Reader(db_path(here.home)) as reader:
        child = next(row for row in reader.summaries() if row.parent_id == stored.header.id)
        assert (child.relation, child.source, child.stop_reason) == ("delegate", "delegate", "completed")
        assert reader.get(child.id).answer == "Three files."


async def test_a_bug_in_the_loop_is_noted_as_the_hosts_and_not_hidden(world: MakeWorld) -> None:
    with FakeProvider([text("hi")]) as provider:
        here = world(provider)
        with pytest.raises(ZeroDivisionError):
            async with here.agent() as loop:
                loop.on_delta = lambda delta: 1 / 0  # type: ignore[assignment]
                async for _ in loop.turn(Message.user("go")):
                    pass
    outcome = here.stored(loop.recorder.header.id).outcome
    assert outcome is not None
    assert (outcome.stop_reason, outcome.boundary, outcome.error_type) == (
        StopReason.ERROR,
        Boundary.HOST,
        "ZeroDivisionError",
    )


def test_roles_and_steps_serialise_to_plain_json() -> None:
    assert json.loads(json.dumps(Message.assistant("x").to_json()))["role"] == Role.ASSISTANT.value


_LONG = "again and " * 2000


async def test_text_that_arrived_before_a_turn_was_stopped_is_recorded_and_stays_in_the_conversation(
    world: MakeWorld,
) -> None:
    pieces: list[str] = []
    arrived = asyncio.Event()

    def receive(delta: StreamDelta) -> None:
        pieces.append(delta.text)
        arrived.set()

    never_ending = slow(0.05, text(_LONG))
    with FakeProvider([never_ending, text("Go on.")]) as provider:
        here = world(provider, plan=RolloutPlan(toolsets=(), on_delta=receive))
        async with here.agent() as loop:

            async def first_turn() -> None:
                async for _ in loop.turn(Message.user("go")):
                    pass

            task = asyncio.create_task(first_turn())
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            partial = "".join(pieces)
            async for _ in loop.turn(Message.user("and?")):
                pass
        sent = provider.posts[1].json["messages"]
    assert partial and partial != _LONG
    assert [message["content"] for message in sent] == ["go", partial, "and?"]
    stored = here.stored(loop.recorder.header.id)
    step = next(step for step in stored.steps if step.kind is StepKind.MODEL)
    assert step.message.content == partial
    assert step.call is not None and step.call.finish_reason == INTERRUPTED
    assert stored.cost_usd is None, "what the interrupted call cost is unknown"
