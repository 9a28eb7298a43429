"""The original's packing functions over plain lists of groups, and its `app`, by Hermes's trajectory API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes.rollouts.core.buffer import Buffer
from hermes.rollouts.core.packing import Demand, choose
from hermes.rollouts.core.queue import Queue, QueuedGroup

Found = tuple[list[dict[str, Any]] | None, list[dict[str, Any]]]
"""The batch, or None, and the queue without it."""


def find_groups_summing_to_target(buffer: Sequence[Mapping[str, Any]], target_size: int) -> list[int]:
    """The places of groups that have exactly so many sequences together; none if there are no such groups."""
    parts = Buffer(target_size)
    leaving: list[QueuedGroup] = []
    for place, item in enumerate(buffer):
        leaving = parts.add(_group(place, item, None))
        if leaving:
            break
    return [group.id for group in leaving]


def grab_exact_from_heterogeneous_queue(queue: Sequence[dict[str, Any]], batch_size: int) -> Found:
    return _grab(queue, batch_size, {})


def grab_batch_with_minimum_allocations(
    queue: Sequence[dict[str, Any]], batch_size: int, env_configs: Sequence[Mapping[str, Any]]
) -> Found:
    minimums = {
        env["registered_id"]: env["min_batch_allocation"]
        for env in env_configs
        if env.get("connected") and env.get("min_batch_allocation") is not None
    }
    return _grab(queue, batch_size, minimums)


def _grab(queue: Sequence[dict[str, Any]], batch_size: int, minimums: Mapping[int, float]) -> Found:
    waiting = Queue(
        _group(place, item, item.get("env_id") if minimums else None) for place, item in enumerate(queue)
    )
    chosen = [group.id for group in choose(waiting.lanes, Demand(batch_size, minimums))]
    if not chosen:
        return None, list(queue)
    taken = set(chosen)
    return [queue[place] for place in chosen], [
        item for place, item in enumerate(queue) if place not in taken
    ]


def _group(place: int, item: Mapping[str, Any], env_id: int | None) -> QueuedGroup:
    return QueuedGroup(place, env_id, len(item["tokens"]), 0, 0.0)


def __getattr__(name: str) -> Any:
    """`app`: an API of its own for each process, in memory, made when it is first asked for."""
    if name != "app":
        raise AttributeError(name)
    from hermes.rollouts.http.app import build_app
    from hermes.rollouts.intake import IntakeLimits
    from hermes.rollouts.journal.journal import MemoryJournal
    from hermes.rollouts.parsing.worker import Parser
    from hermes.rollouts.security import TOKEN_SCHEME
    from hermes.rollouts.service import TrajectoryService
    from hermes.safety.access import policy_for

    globals()["app"] = build_app(
        TrajectoryService(MemoryJournal(), IntakeLimits()),
        policy_for(TOKEN_SCHEME, "127.0.0.1", None),
        Parser(),
    )
    return globals()["app"]
