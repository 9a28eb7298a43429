"""A user's conversation with the agent: turns, retries, changes of model, ratings.

A conversation is one trajectory as long as it only grows. Another model, other tools or a retry closes the
trajectory and continues in a new one, which names its parent and has the history so far as input. Nothing
recorded is ever edited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from hermes.agent.build import RolloutPlan, new_header, open_agent, prepare_opening
from hermes.agent.loop import AgentLoop
from hermes.agent.memory import strip_memory
from hermes.agent.rating import make_choice, make_rating
from hermes.config.load import Config
from hermes.core import Message, Rating, Relation, Role, Source, Step, StepKind, new_id
from hermes.errors import UsageError
from hermes.models.base import ChatModel
from hermes.store import Writer


class Conversation:
    """Use as an async context manager; leaving it ends the trajectory."""

    def __init__(
        self,
        config: Config,
        writer: Writer,
        model: ChatModel,
        plan: RolloutPlan,
        source: Source = Source.CHAT,
    ) -> None:
        self.config = config
        self.model = model
        self.plan = plan
        self.session_id = new_id()
        self._writer = writer
        self._source = source
        self._stack = AsyncExitStack()
        self._loop: AgentLoop | None = None
        self._last_answer: int | None = None
        self._first_try: tuple[str, int] | None = None
        """Trajectory and step of the answer that the last retry did again."""

    async def __aenter__(self) -> Conversation:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def loop(self) -> AgentLoop:
        assert self._loop is not None, "the conversation is not open"
        return self._loop

    @property
    def trajectory_id(self) -> str:
        return self.loop.recorder.header.id

    async def send(self, text: str) -> AsyncIterator[Step]:
        """One turn. How it ended is in `loop.outcome`."""
        self._first_try = self._first_try if self._last_answer is None else None
        async for step in self.loop.turn(Message.user(text)):
            if step.kind is StepKind.MODEL:
                self._last_answer = step.index
            yield step

    async def retry(self) -> AsyncIterator[Step]:
        """Answers the last user message again, as a new trajectory beside the first."""
        history = self.loop.messages
        user_indices = [index for index, message in enumerate(history) if message.role is Role.USER]
        if not user_indices:
            raise UsageError("there is nothing to retry yet", "ask something first")
        last = user_indices[-1]
        question = history[last].content
        first_try = None if self._last_answer is None else (self.trajectory_id, self._last_answer)
        await self._continue(history[:last], Relation.RETRY)
        self._first_try = first_try
        async for step in self.send(question):
            yield step

    async def restart(self) -> None:
        """Ends this conversation and starts an empty one."""
        await self._stack.aclose()
        await self._open()

    async def use(self, *, model: ChatModel | None = None, toolsets: Sequence[str] | None = None) -> None:
        """Continues with another model or other tools."""
        self.model = model or self.model
        self.plan = replace(self.plan, toolsets=toolsets) if toolsets is not None else self.plan
        await self._continue(list(self.loop.messages), Relation.CONTINUED)

    async def rate(self, verdict: str) -> Rating:
        """Rates the last answer; the rating is durable when this returns."""
        if self._last_answer is None:
            raise UsageError("there is no answer to rate yet", "ask something first")
        rating = make_rating(self.trajectory_id, verdict, step_index=self._last_answer)
        await asyncio.wrap_future(self._writer.add_rating(rating))
        return rating

    async def compare_retry(self, *, better: bool) -> Rating:
        """Rates the retry against the answer before it; the rating is durable when this returns."""
        if self._first_try is None or self._last_answer is None:
            raise UsageError("there is no retry to compare", "/retry answers the last message again")
        rating = make_choice(self.trajectory_id, self._last_answer, *self._first_try, better=better)
        await asyncio.wrap_future(self._writer.add_rating(rating))
        return rating

    async def forget(self, fact_id: str) -> None:
        """Removes a fact from the memory; conversations that begin later do not see it."""
        await asyncio.wrap_future(self._writer.remove_fact(fact_id))

    async def _continue(self, history: Sequence[Message], relation: Relation) -> None:
        parent = self.trajectory_id if self.loop.recorder.begun else None
        await self._stack.aclose()
        await self._open(history if parent else (), parent, relation)

    async def _open(
        self, history: Sequence[Message] = (), parent: str | None = None, relation: Relation | None = None
    ) -> None:
        self._stack = AsyncExitStack()
        self._last_answer = None
        self._first_try = None
        header = replace(
            new_header(self._source, self.model),
            session_id=self.session_id,
            parent_id=parent,
            relation=relation if parent else None,
        )
        self._loop = await self._stack.enter_async_context(
            open_agent(self.config, self._writer, self.model, header, self.plan)
        )
        if not history:
            prepare_opening(self.config, self._loop, self.plan)
        for message in history:
            self._loop.prepare(message, record_as=strip_memory(message))
