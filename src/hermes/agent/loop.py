"""The agent loop: call the model, run the tools it calls, until the model stops or a limit is reached.

Chat, batch and environments all run this loop. It yields each step after that step is durable, in the order
of the conversation: results of parallel calls come in the order of their calls. A failure of the model, the
provider or a tool, or a limit, does not raise: it becomes `outcome`. The loop does raise if the trajectory
cannot be recorded (StoreError), and for bugs, which are also noted in the outcome.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace

from hermes.agent.capture import Recorder
from hermes.agent.replay import RecordedSteps
from hermes.config.settings import LimitSettings
from hermes.core import (
    Boundary,
    JSONObject,
    Message,
    ModelCall,
    Outcome,
    Role,
    Sampling,
    Step,
    StepKind,
    StopReason,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    Usage,
)
from hermes.core.clock import now_ms
from hermes.core.model_call import CONTENT_FILTER, INTERRUPTED
from hermes.core.outcome import COMPLETED
from hermes.errors import ContextOverflowError, LimitError, ProviderError, SandboxError
from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta, StreamDelta
from hermes.models.usage import price_of_model
from hermes.tools.base import ENDED, Tool, Workbench
from hermes.tools.execute import run_tool_call


class PartialAnswer:
    """Passes the pieces of an answer on, and keeps them in case the call is stopped."""

    def __init__(self, on_delta: OnDelta | None) -> None:
        self._on_delta = on_delta
        self.text = ""
        self.reasoning = ""

    def receive(self, delta: StreamDelta) -> None:
        if delta.retry:
            self.text = self.reasoning = ""
        self.text += delta.text
        self.reasoning += delta.reasoning
        if self._on_delta is not None:
            self._on_delta(delta)


class AgentLoop:
    """One conversation with one model: `prepare` context, then `turn` by turn, then `finish`."""

    def __init__(
        self,
        model: ChatModel,
        tools: Sequence[Tool],
        bench: Workbench,
        recorder: Recorder,
        limits: LimitSettings,
        sampling: Sampling = Sampling(),  # noqa: B008  immutable
        on_delta: OnDelta | None = None,
    ) -> None:
        self.model = model
        self.bench = bench
        self.recorder = recorder
        self.limits = limits
        self.sampling = sampling
        self.on_delta = on_delta
        self.messages: list[Message] = []
        """The conversation exactly as the next call will see it."""
        self.outcome: Outcome | None = None
        """How the latest turn ended; None before and during a turn."""
        self.recorded: RecordedSteps | None = None
        """The steps of the interrupted attempt that this one continues."""
        self.usage = Usage()
        self.cost_usd: float | None = 0.0
        self.tools = tuple(tools)
        self._offered: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._schemas: tuple[JSONObject, ...] = tuple(tool.schema for tool in tools)
        self._prepared: list[tuple[Message, bool]] = []
        self._private = False
        """Whether the conversation has text that is not part of the dataset's version of it."""
        self._example_calls: set[str] = set()
        self._reserved: dict[str, int] = {}
        """The step indices of the latest calls, by call id."""
        self._deadline: float | None = None

    def prepare(self, message: Message, *, ephemeral: bool = False, record_as: Message | None = None) -> None:
        """Puts a message from outside (system prompt, example, earlier history) into the conversation.

        It is recorded when the first turn begins, so a conversation without a turn is not stored.
        `record_as` is the version for the dataset, without private facts: it becomes the step. The inputs of
        the model calls are recorded unchanged; their token ids, which encode the facts, are withheld.
        """
        self.messages.append(message)
        self._private = self._private or record_as not in (None, message)
        self._prepared.append((record_as or message, ephemeral))
        if ephemeral:
            self._example_calls.update(call.id for call in message.tool_calls)

    async def turn(self, message: Message) -> AsyncIterator[Step]:
        """Answers one message, yielding every step; afterwards `outcome` is set."""
        self.outcome = None
        if self._deadline is None and self.limits.timeout_s is not None:
            self._deadline = time.monotonic() + self.limits.timeout_s
        try:
            async for step in self._cancel_open_calls():
                yield step
            self.prepare(message)
            async for step in self._record_prepared():
                yield step
            for _ in range(self.limits.max_turns):
                step = await self._call_model()
                yield step
                assert step.call is not None
                self.outcome = outcome_of_answer(step.message, step.call)
                if self.outcome is not None:
                    return
                async for result in self._run_tools(step.message.tool_calls):
                    yield result
                if self.bench.resources.pop(ENDED, False):
                    self.outcome = COMPLETED
                    return
            raise LimitError("max_turns", f"stopped after {self.limits.max_turns} model calls")
        except (LimitError, ProviderError, SandboxError) as error:
            self.outcome = outcome_of_error(error)
        except BaseException as error:
            self.outcome = self.outcome or outcome_of_error(error)
            raise

    async def finish(self, outcome: Outcome | None = None) -> Outcome | None:
        """Ends the trajectory with the latest turn's outcome, or the given one."""
        self.outcome = outcome or self.outcome
        if self.outcome is not None:
            await self.recorder.finish(self.outcome)
        return self.outcome

    async def _record_prepared(self) -> AsyncIterator[Step]:
        while self._prepared:  # a turn that is stopped here leaves the rest, and only the rest, for the next
            message, ephemeral = self._prepared.pop(0)
            step = Step(self.recorder.reserve(), StepKind.INPUT, message, now_ms(), ephemeral=ephemeral)
            await self.recorder.append(step)
            yield step

    async def _call_model(self) -> Step:
        """One model call, recorded with its exact input."""
        self._check_limits()
        context = tuple(self.messages)
        recorded = self.recorded.answer(context, self._schemas) if self.recorded else None
        if recorded is None or recorded.call is None or self.recorded is None:
            reply, started_ms = await self._ask(context)
        else:
            reply = ChatReply(recorded.message, recorded.call, self.recorded.seen)
            started_ms = recorded.started_at_ms
        self._count(reply)
        call = reply.call
        if self._private and call.tokens is not None:
            call = replace(call, tokens=None, tokens_withheld="memory")
        step = Step(self.recorder.reserve(), StepKind.MODEL, reply.message, started_ms, call=call)
        self.bench.step_index = step.index
        self.messages.append(reply.message)
        await self.recorder.append(step, context=reply.seen or context, tools=self._schemas)
        return step

    async def _ask(self, context: tuple[Message, ...]) -> tuple[ChatReply, int]:
        """The model's reply, and when it was asked."""
        request = ChatRequest(context, self._schemas, self.sampling, self._time_left_s())
        started_ms = now_ms()
        partial = PartialAnswer(self.on_delta)
        try:
            async with asyncio.timeout(request.timeout_s):
                reply = await self.model.complete(request, partial.receive if self.on_delta else None)
        except asyncio.CancelledError:
            await self._record_partial(partial, context, started_ms)
            raise
        except TimeoutError as error:
            await self._record_partial(partial, context, started_ms)
            raise self._timeout_error() from error
        return reply, started_ms

    async def _record_partial(
        self, partial: PartialAnswer, context: tuple[Message, ...], started_ms: int
    ) -> None:
        """Records the text that was streamed before the call was stopped; its usage is unknown."""
        if not partial.text and not partial.reasoning:
            return
        call = ModelCall(
            model=self.model.name,
            endpoint="",
            sampling=self.sampling,
            finish_reason=INTERRUPTED,
            usage=Usage(),
            latency_ms=float(now_ms() - started_ms),
        )
        message = Message.assistant(partial.text, reasoning=partial.reasoning or None)
        self.cost_usd = None
        step = Step(self.recorder.reserve(), StepKind.MODEL, message, started_ms, call=call)
        self.messages.append(message)
        await self.recorder.append(step, context=context, tools=self._schemas)

    async def _run_tools(self, calls: Sequence[ToolCall]) -> AsyncIterator[Step]:
        """Runs the calls in parallel; yields and appends their results in the order of the calls."""
        indices = [self.recorder.reserve() for _ in calls]
        self._reserved = {call.id: index for call, index in zip(calls, indices, strict=True)}
        tasks = [asyncio.create_task(self._run_tool(*pair)) for pair in zip(calls, indices, strict=True)]
        pending = set(tasks)
        unyielded = deque(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=self._time_left_s(), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for task in done:
                    task.result()  # a failure that is no result ends the turn now, not after the slower calls
                while unyielded and unyielded[0].done():
                    yield unyielded.popleft().result()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            self.messages.extend(task.result().message for task in tasks if _succeeded(task))
        if unyielded:
            finished = [task.result() for task in unyielded if _succeeded(task)]
            cancelled = [step async for step in self._cancel_open_calls()]
            for step in sorted([*finished, *cancelled], key=lambda step: step.index):
                yield step
            raise self._timeout_error()

    async def _run_tool(self, call: ToolCall, index: int) -> Step:
        recorded = self.recorded.result(call, self._offered.get(call.name)) if self.recorded else None
        if recorded is None:
            started_ms = now_ms()
            message, result = await run_tool_call(call, self._offered, self.bench)
            step = Step(index, StepKind.TOOL, message, started_ms, result=result)
        else:
            step = replace(recorded, index=index)
        recording = asyncio.ensure_future(self.recorder.append(step))
        try:
            await asyncio.shield(recording)
        except asyncio.CancelledError:
            await recording  # the writer has the step already: it counts as done, not as cancelled
        return step

    async def _cancel_open_calls(self) -> AsyncIterator[Step]:
        """Adds a result to the calls that a stopped turn left open: providers reject a call without one.

        The result takes its call's place among the results. Calls of examples stay as they are: an example
        may end with its call.
        """
        answered = {message.tool_call_id for message in self.messages if message.role is Role.TOOL}
        recorded = len(self.messages) - len(self._prepared)
        for position, call in _call_positions(self.messages):
            if call.id in answered or call.id in self._example_calls:
                continue
            content = json.dumps({"error": "the turn was stopped before this finished", "kind": "cancelled"})
            message = Message.tool(call, content)
            self.messages.insert(position, message)
            if position > recorded:  # its call is history that is not recorded yet
                self._prepared.insert(position - recorded, (message, False))
                continue
            recorded += 1
            result = ToolResult(call.id, call.name, False, 0.0, ToolErrorKind.CANCELLED, None, len(content))
            index = self._reserved.get(call.id)
            index = self.recorder.reserve() if index is None else index
            step = Step(index, StepKind.TOOL, message, now_ms(), result=result)
            await self.recorder.append(step)
            yield step

    def _count(self, reply: ChatReply) -> None:
        self.usage += reply.call.usage
        cost_usd = reply.call.cost_usd
        self.cost_usd = None if self.cost_usd is None or cost_usd is None else self.cost_usd + cost_usd

    def _check_limits(self) -> None:
        """Before each call: the limits must leave room for another."""
        limits = self.limits
        if limits.max_tokens is not None and self.usage.total >= limits.max_tokens:
            raise LimitError("max_tokens", f"used {self.usage.total} of {limits.max_tokens} tokens")
        if limits.max_cost_usd is not None:
            if self.cost_usd is None or price_of_model(self.bench.settings, self.model) is None:
                raise LimitError(
                    "max_cost",
                    f"the price of {self.model.name} is unknown, so the cost limit cannot be kept",
                    "state it under 'prices' in config.yaml, in US dollars per million tokens",
                )
            if self.cost_usd >= limits.max_cost_usd:
                raise LimitError("max_cost", f"spent ${self.cost_usd:.4f} of ${limits.max_cost_usd:.4f}")
        if (left := self._time_left_s()) is not None and left <= 0:
            raise self._timeout_error()

    def _time_left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _timeout_error(self) -> LimitError:
        return LimitError("timeout", f"the trajectory's time limit of {self.limits.timeout_s:g} s is up")


def _call_positions(messages: Sequence[Message]) -> Iterator[tuple[int, ToolCall]]:
    """The calls, each with the position of its result; results may be inserted between two of them."""
    position = 0
    while position < len(messages):
        yield from enumerate(messages[position].tool_calls, position + 1)
        position += 1


def _succeeded(task: asyncio.Task[Step]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


_LIMITS = {
    "max_turns": StopReason.MAX_TURNS,
    "max_tokens": StopReason.MAX_TOKENS,
    "max_cost": StopReason.MAX_COST,
    "max_calls": StopReason.MAX_CALLS,
    "timeout": StopReason.TIMEOUT,
}


def outcome_of_answer(message: Message, call: ModelCall) -> Outcome | None:
    """The outcome of a model's answer; None if it calls tools, so that the turn continues."""
    runnable = [tool_call for tool_call in message.tool_calls if tool_call.error is None]
    if call.finish_reason == "length" and not runnable:
        return Outcome(StopReason.TRUNCATED, Boundary.LIMIT, detail="the answer hit the completion limit")
    if message.tool_calls:
        return None
    if call.finish_reason == CONTENT_FILTER:
        return Outcome(StopReason.FILTERED, Boundary.PROVIDER, detail="the provider withheld the answer")
    if not message.content.strip():
        return Outcome(StopReason.EMPTY, Boundary.MODEL, detail="the answer has no text and calls no tool")
    return COMPLETED


def outcome_of_error(error: BaseException) -> Outcome:
    """Every exception has an outcome; an unexpected one is the host's failure, never the policy's."""
    kind = type(error).__name__
    match error:
        case LimitError():
            return Outcome(_LIMITS[error.limit], Boundary.LIMIT, kind, error.message)
        case ContextOverflowError():
            return Outcome(StopReason.CONTEXT_FULL, Boundary.LIMIT, kind, error.message)
        case ProviderError():
            return Outcome(StopReason.ERROR, Boundary.PROVIDER, kind, error.message)
        case SandboxError():
            return Outcome(StopReason.ERROR, Boundary.SANDBOX, kind, error.message)
        case asyncio.CancelledError() | KeyboardInterrupt() | GeneratorExit():
            return Outcome(StopReason.CANCELLED, Boundary.USER, kind)
        case _:
            return Outcome(StopReason.ERROR, Boundary.HOST, kind, str(error))
