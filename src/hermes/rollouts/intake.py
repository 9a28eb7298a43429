"""Taking groups in: who may send, how much there is room for, and each post once.

Backpressure has two stages. Environments pause by themselves when they see how much waits (`shares`); far
above that, posts are refused with 503 until there is room.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes.core.json import JSONObject
from hermes.rollouts.core import events
from hermes.rollouts.core.metrics import Metrics
from hermes.rollouts.core.queue import QueuedGroup
from hermes.rollouts.core.state import Accepted
from hermes.rollouts.journal.journal import GroupJournal
from hermes.rollouts.parsing.recognise import IncomingGroup

_RETRY_AFTER_S = 5
_MANY = 100


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """What the server bears before it refuses."""

    max_groups: int = 20_000
    max_bytes: int = 4 << 30
    """Of groups that wait or are out with a trainer."""
    max_body_bytes: int = 256 << 20
    """Of one request, inflated."""
    max_held: int = 1_024
    """Groups of one environment that cannot be served: parts of groups, and sizes that fit no batch."""
    env_timeout_s: float = 60.0
    """An environment silent for longer counts as disconnected."""
    accept_unknown_envs: bool = False
    """Take groups with an environment id that was never given out, as the original server does."""


class RejectedPostError(Exception):
    """A request that is understood and not carried out."""

    def __init__(self, status: int, detail: object, retry_after_s: int | None = None) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


class Intake:
    def __init__(self, journal: GroupJournal, limits: IntakeLimits, metrics: Metrics) -> None:
        self.latest: bytes | None = None
        """The bytes of the group that joined the queue last."""
        self._journal = journal
        self._state = journal.state
        self._limits = limits
        self._metrics = metrics
        self._group_ids = itertools.count(journal.last_group_id + 1)
        self._under_way_groups = 0
        self._under_way_bytes = 0
        self._posts: dict[str, asyncio.Future[list[Accepted]]] = {}
        """Posts with an idempotency key that are not answered yet."""

    async def post(self, incoming: Sequence[IncomingGroup], *, many: bool, key: str | None) -> JSONObject:
        """Takes all groups or none. With a key seen before nothing is taken: the post had been received."""
        if len(incoming) > _MANY:
            await asyncio.sleep(0)  # parsing took its time: let others have their turn
        while key is not None and key in self._posts:
            await asyncio.wait([self._posts[key]])
        if key is not None and key in self._state.answered:
            return _duplicate(self._state.answered[key], many)
        if not incoming:
            return {"status": "received", "groups_processed": 0}
        self._check(incoming)
        now_s = time.time()
        groups = [self._named(new, now_s) for new in incoming]
        future = self._journal.append_groups(
            [(group, new.payload) for group, new in zip(groups, incoming, strict=True)],
            self._acceptance(incoming, key),
            events.answered(key, len(groups)) if key is not None else None,
        )
        accepted = await self._safe(future, groups, key)
        self._metrics.count("groups_received_total", len(groups))
        self._metrics.groups.add(len(groups), now_s)
        self._metrics.sequences.add(sum(group.size for group in groups), now_s)
        return _answer(accepted, many)

    async def _safe(
        self, future: asyncio.Future[list[Accepted]], groups: list[QueuedGroup], key: str | None
    ) -> list[Accepted]:
        """Waits for the journal, while the groups count as room taken and the key as under way."""
        size_bytes = sum(group.bytes for group in groups)
        self._under_way_groups += len(groups)
        self._under_way_bytes += size_bytes
        if key is not None:
            self._posts[key] = future
        try:
            return await future
        finally:
            self._under_way_groups -= len(groups)
            self._under_way_bytes -= size_bytes
            if key is not None:
                del self._posts[key]

    def _acceptance(
        self, incoming: Sequence[IncomingGroup], key: str | None
    ) -> Callable[[QueuedGroup], Accepted]:
        """What is done about each group, in order, once it is safe; after the last, the key is remembered."""
        waiting = deque(incoming)

        def accept(group: QueuedGroup) -> Accepted:
            new = waiting.popleft()
            accepted = self._state.accept(group)
            if group.id in self._state.queue:
                self.latest = new.payload
            if key is not None and not waiting:
                self._state.remember(key, len(incoming))
            return accepted

        return accept

    def _named(self, new: IncomingGroup, now_s: float) -> QueuedGroup:
        return QueuedGroup(next(self._group_ids), new.env_id, new.size, len(new.payload), now_s)

    def _check(self, incoming: Sequence[IncomingGroup]) -> None:
        state, limits = self._state, self._limits
        for env_id in {new.env_id for new in incoming} - {None}:
            assert env_id is not None
            if env_id in state.envs:
                state.hear(env_id, time.time())
            elif not limits.accept_unknown_envs:
                raise RejectedPostError(404, f"environment {env_id} is not registered")
        groups = state.kept_groups + self._under_way_groups + len(incoming)
        size_bytes = state.kept_bytes + self._under_way_bytes + sum(len(new.payload) for new in incoming)
        if groups > limits.max_groups or size_bytes > limits.max_bytes:
            self._metrics.count("posts_refused_total", reason="full")
            detail = f"the queue is full: {state.kept_groups} groups, {state.kept_bytes >> 20} MB"
            raise RejectedPostError(503, detail, _RETRY_AFTER_S)
        kinds = {(new.env_id, new.size) for new in incoming}
        unfit = {kind for kind in kinds if state.would_be_held(*kind)}
        held: dict[int | None, int] = {}
        for new in incoming if unfit else ():
            if (new.env_id, new.size) not in unfit:
                continue
            count = held[new.env_id] = held.get(new.env_id, state.held(new.env_id)) + 1
            if count > limits.max_held:
                self._metrics.count("posts_refused_total", reason="held")
                why = state.misfit(new.size) or "its parts do not make up whole groups"
                message = f"{count - 1} groups of this environment already cannot be served ({why})"
                raise RejectedPostError(
                    422, [{"type": "misfit", "loc": ["body"], "msg": message, "input": new.size}]
                )


def _answer(accepted: list[Accepted], many: bool) -> JSONObject:
    reasons = [outcome.reason for outcome in accepted if outcome.reason]
    buffered = [outcome.buffered for outcome in accepted if outcome.buffered is not None]
    answer: JSONObject = {"status": "received"}
    if many:
        answer["groups_processed"] = len(accepted)
        if buffered:
            answer |= {"buffered": len(buffered), "last_buffer_size": buffered[-1]}
    elif buffered:
        answer = {"status": "buffered", "buffer_size": buffered[-1]}
    return {**answer, "reason": reasons[-1]} if reasons else answer


def _duplicate(groups: int, many: bool) -> JSONObject:
    answer: JSONObject = {"status": "received", "duplicate": True}
    return {**answer, "groups_processed": groups} if many else answer
