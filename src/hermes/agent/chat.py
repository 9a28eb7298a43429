"""A user's conversation with the agent: turns, retries, changes of model, ratings.

A conversation is one trajectory as long as it only grows. Another model, other tools or a retry closes the
trajectory and continues in a new one, which names its parent and has the history so far as input. Nothing
recorded is ever edited.
"""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from hermes.agent.build import RolloutPlan, new_header, open_agent, prepare_opening, strip_memory
from hermes.agent.loop import AgentLoop
from hermes.config.load import Config
from hermes.core import (
    Message,
    Rating,
    Relation,
    Role,
    Source,
    Step,
    StepKind,
    Trajectory,
    new_id,
)
from hermes.core.rating import RatingDraft
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
        resumed: Trajectory | None = None,
    ) -> None:
        """`resumed` is an earlier conversation that this one continues."""
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
        self._resumed = resumed

    async def __aenter__(self) -> Conversation:
        if self._resumed is None:
            await self._open()
        else:
            await self.resume(self._resumed)
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
        user_indices = self._user_indices()
        if not user_indices:
            raise UsageError("there is nothing to retry yet", "ask something first")
        last = user_indices[-1]
        question = history[last].content
        first_try = None if self._last_answer is None else (self.trajectory_id, self._last_answer)
        await self._continue(history[:last], Relation.RETRY)
        self._first_try = first_try
        async for step in self.send(question):
            yield step

    async def undo(self) -> str:
        """Takes the last question and its answer out of the conversation; returns the question.

        The recorded trajectory stays as it is: the conversation continues in a new one without that turn.
        """
        history = self.loop.messages
        user_indices = self._user_indices()
        if not user_indices:
            raise UsageError("there is nothing to undo yet", "ask something first")
        last = user_indices[-1]
        question = history[last].content
        await self._continue(history[:last], Relation.CONTINUED)
        return question

    async def resume(self, trajectory: Trajectory) -> None:
        """Ends this conversation and continues a recorded one, with its messages as the history so far."""
        await self._stack.aclose()
        header = trajectory.header
        self.session_id = header.session_id or self.session_id
        await self._open(self._history_of(trajectory), header.id, Relation.CONTINUED)

    def _history_of(self, trajectory: Trajectory) -> list[Message]:
        """The messages of a recorded conversation, with the examples that this conversation's model needs."""
        messages = list(trajectory.messages)
        opening = [message for message in messages[:1] if message.role is Role.SYSTEM]
        return [*opening, *self.plan.examples, *messages[len(opening) :]]

    def _user_indices(self) -> list[int]:
        """The positions of the user's questions among the messages; those of examples are left out."""
        return [
            index
            for index, message in enumerate(self.loop.messages)
            if message.role is Role.USER and not self._is_example(message)
        ]

    def _is_example(self, message: Message) -> bool:
        return any(message is example for example in self.plan.examples)

    async def restart(self) -> None:
        """Ends this conversation and starts an empty one."""
        await self._stack.aclose()
        await self._open()

    async def use(self, *, model: ChatModel | None = None, toolsets: Sequence[str] | None = None) -> None:
        """Continues with another model or other tools."""
        self.model = model or self.model
        self.plan = replace(self.plan, toolsets=toolsets) if toolsets is not None else self.plan
        await self._continue(list(self.loop.messages), Relation.CONTINUED)

    async def rate(self, verdict: str, comment: str | None = None) -> Rating:
        """Rates the last answer; the rating is durable when this returns."""
        if self._last_answer is None:
            raise UsageError("there is no answer to rate yet", "ask something first")
        draft = RatingDraft(
            self.trajectory_id, verdict, getpass.getuser(), step_index=self._last_answer, comment=comment
        )
        return await self._record(draft)

    async def compare_retry(self, *, better: bool) -> Rating:
        """Rates the retry against the answer before it; the rating is durable when this returns."""
        if self._first_try is None or self._last_answer is None:
            raise UsageError("there is no retry to compare", "/retry answers the last message again")
        other_id, other_step = self._first_try
        draft = RatingDraft(
            self.trajectory_id,
            "a" if better else "b",
            getpass.getuser(),
            other_id=other_id,
            step_index=self._last_answer,
            other_step=other_step,
            shown_first=other_id,
        )
        return await self._record(draft)

    async def _record(self, draft: RatingDraft) -> Rating:
        rating = draft.build()
        await asyncio.wrap_future(self._writer.add_rating(rating))
        return rating

    async def forget(self, fact_id: str) -> None:
        """Removes a fact from the memory; conversations that begin later do not see it."""
        await asyncio.wrap_future(self._writer.remove_fact(fact_id))

    async def _continue(self, history: Sequence[Message], relation: Relation) -> None:
        recorder = self.loop.recorder
        parent = recorder.header.id if recorder.begun else recorder.header.parent_id
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
            if self._is_example(message):
                self._loop.prepare(message, ephemeral=True)
            else:
                self._loop.prepare(message, record_as=strip_memory(message))
