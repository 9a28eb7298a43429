"""Accepts posted groups: known environments, within limits, each post once.

Backpressure has two stages. Environments pause by themselves when `/status-env` reports a long queue
(`shares`); far above that, posts are rejected with 503 until there is room.
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
from hermes.rollouts.parsing.fast_path import IncomingGroup

_RETRY_AFTER_S = 5
_LARGE_POST_GROUPS = 100


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Limits of what the server stores before it rejects posts."""

    max_groups: int = 20_000
    max_bytes: int = 4 << 30
    """The size of all groups that are buffered, queued or leased."""
    max_body_bytes: int = 256 << 20
    """The size of one request, decompressed."""
    max_held: int = 1_024
    """Groups of one environment that cannot be served now: parts of groups, and sizes that fit no batch."""
    env_timeout_s: float = 60.0
    """An environment that sends no request for longer counts as disconnected."""
    accept_unknown_envs: bool = False
    """Accept groups with an environment id that was never assigned, as Atropos's server does."""


class RejectedPostError(Exception):
    """A valid request that is rejected; becomes the HTTP response."""

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
        self._pending_groups = 0
        self._pending_bytes = 0
        self._posts: dict[str, asyncio.Future[list[Accepted]]] = {}
        """Posts with an idempotency key that are being stored."""

    async def post(self, incoming: Sequence[IncomingGroup], *, many: bool, key: str | None) -> JSONObject:
        """Stores all groups or none; returns the response. A post with a known key is a duplicate."""
        if len(incoming) > _LARGE_POST_GROUPS:
            await asyncio.sleep(0)  # parsing took long: let other requests run
        while key is not None and key in self._posts:
            await asyncio.wait([self._posts[key]])
        if key is not None and key in self._state.idempotency_keys:
            return _duplicate_response(self._state.idempotency_keys[key], many)
        if not incoming:
            return {"status": "received", "groups_processed": 0}
        self._check(incoming)
        now_s = time.time()
        groups = [self._queued_group(new, now_s) for new in incoming]
        future = self._journal.append_groups(
            [(group, new.payload) for group, new in zip(groups, incoming, strict=True)],
            self._accept_in_order(incoming, key),
            events.posted(key, len(groups)) if key is not None or len(groups) > 1 else None,
        )
        accepted = await self._wait_stored(future, groups, key)
        self._metrics.count("groups_received_total", len(groups))
        self._metrics.groups.add(len(groups), now_s)
        self._metrics.sequences.add(sum(group.size for group in groups), now_s)
        return _response(accepted, many)

    async def _wait_stored(
        self, future: asyncio.Future[list[Accepted]], groups: list[QueuedGroup], key: str | None
    ) -> list[Accepted]:
        """Waits for the journal; meanwhile the groups count as stored, and the key as pending."""
        size_bytes = sum(group.bytes for group in groups)
        self._pending_groups += len(groups)
        self._pending_bytes += size_bytes
        if key is not None:
            self._posts[key] = future
        try:
            return await future
        finally:
            self._pending_groups -= len(groups)
            self._pending_bytes -= size_bytes
            if key is not None:
                del self._posts[key]

    def _accept_in_order(
        self, incoming: Sequence[IncomingGroup], key: str | None
    ) -> Callable[[QueuedGroup], Accepted]:
        """A callback for each group, in order, once it is durable; after the last one the key is stored."""
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

    def _queued_group(self, new: IncomingGroup, now_s: float) -> QueuedGroup:
        return QueuedGroup(next(self._group_ids), new.env_id, new.size, len(new.payload), now_s)

    def _check(self, incoming: Sequence[IncomingGroup]) -> None:
        state, limits = self._state, self._limits
        for env_id in {new.env_id for new in incoming} - {None}:
            assert env_id is not None
            if env_id in state.envs:
                state.mark_seen(env_id, time.time())
            elif not limits.accept_unknown_envs:
                raise RejectedPostError(404, f"environment {env_id} is not registered")
        groups = state.kept_groups + self._pending_groups + len(incoming)
        size_bytes = state.kept_bytes + self._pending_bytes + sum(len(new.payload) for new in incoming)
        if groups > limits.max_groups or size_bytes > limits.max_bytes:
            self._metrics.count("posts_refused_total", reason="full")
            detail = f"the queue is full: {state.kept_groups} groups, {state.kept_bytes >> 20} MB"
            raise RejectedPostError(503, detail, _RETRY_AFTER_S)
        kinds = {(new.env_id, new.size) for new in incoming}
        unfit = {kind for kind in kinds if state.would_be_unservable(*kind)}
        unservable: dict[int | None, int] = {}
        for new in incoming if unfit else ():
            if (new.env_id, new.size) not in unfit:
                continue
            before = unservable.get(new.env_id, state.unservable_groups(new.env_id))
            unservable[new.env_id] = before + 1
            if before >= limits.max_held:
                self._metrics.count("posts_refused_total", reason="held")
                reason = state.misfit_reason(new.size) or "its parts do not add up to whole groups"
                message = f"{before} groups of this environment already cannot be served ({reason})"
                raise RejectedPostError(
                    422, [{"type": "misfit", "loc": ["body"], "msg": message, "input": new.size}]
                )


def _response(accepted: list[Accepted], many: bool) -> JSONObject:
    reasons = [outcome.reason for outcome in accepted if outcome.reason]
    buffered = [outcome.buffered for outcome in accepted if outcome.buffered is not None]
    response: JSONObject = {"status": "received"}
    if many:
        response["groups_processed"] = len(accepted)
        if buffered:
            response |= {"buffered": len(buffered), "last_buffer_size": buffered[-1]}
    elif buffered:
        response = {"status": "buffered", "buffer_size": buffered[-1]}
    return {**response, "reason": reasons[-1]} if reasons else response


def _duplicate_response(groups: int, many: bool) -> JSONObject:
    response: JSONObject = {"status": "received", "duplicate": True}
    return {**response, "groups_processed": groups} if many else response
