"""`atroposlib.api` on Hermes's trajectory API: the packing functions over lists of groups, and `app`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes.rollouts.core.buffer import Buffer
from hermes.rollouts.core.packing import Demand, choose
from hermes.rollouts.core.queue import Queue, QueuedGroup

BatchAndRest = tuple[list[dict[str, Any]] | None, list[dict[str, Any]]]
"""The batch or None, and the rest of the queue."""


def find_groups_summing_to_target(buffer: Sequence[Mapping[str, Any]], target_size: int) -> list[int]:
    """Indices of groups with exactly `target_size` sequences in total; empty if there are none."""
    parts = Buffer(target_size)
    leaving: list[QueuedGroup] = []
    for index, group in enumerate(buffer):
        leaving = parts.add(_queued(index, group, None))
        if leaving:
            break
    return [group.id for group in leaving]


def grab_exact_from_heterogeneous_queue(queue: Sequence[dict[str, Any]], batch_size: int) -> BatchAndRest:
    return _grab(queue, batch_size, {})


def grab_batch_with_minimum_allocations(
    queue: Sequence[dict[str, Any]], batch_size: int, env_configs: Sequence[Mapping[str, Any]]
) -> BatchAndRest:
    minimums = {
        env["registered_id"]: env["min_batch_allocation"]
        for env in env_configs
        if env.get("connected") and env.get("min_batch_allocation") is not None
    }
    return _grab(queue, batch_size, minimums)


def _grab(queue: Sequence[dict[str, Any]], batch_size: int, minimums: Mapping[int, float]) -> BatchAndRest:
    waiting = Queue(
        _queued(index, group, group.get("env_id") if minimums else None) for index, group in enumerate(queue)
    )
    chosen = [group.id for group in choose(waiting.lanes, Demand(batch_size, minimums))]
    if not chosen:
        return None, list(queue)
    selected = set(chosen)
    rest = [group for index, group in enumerate(queue) if index not in selected]
    return [queue[index] for index in chosen], rest


def _queued(index: int, group: Mapping[str, Any], env_id: int | None) -> QueuedGroup:
    return QueuedGroup(index, env_id, len(group["tokens"]), 0, 0.0)


def __getattr__(name: str) -> Any:
    """`app`: a trajectory API in the memory of this process, created on first access."""
    if name != "app":
        raise AttributeError(name)
    from hermes.rollouts.http.app import build_app, refuse
    from hermes.rollouts.intake import IntakeLimits
    from hermes.rollouts.journal.journal import MemoryJournal
    from hermes.rollouts.parsing.worker import Parser
    from hermes.rollouts.server import TOKEN_SCHEME
    from hermes.rollouts.service import TrajectoryService
    from hermes.safety.access import policy_for
    from hermes.serving.guard import GuardedApp

    app = build_app(TrajectoryService(MemoryJournal(), IntakeLimits()), Parser())
    globals()["app"] = GuardedApp(app, policy_for(TOKEN_SCHEME, "127.0.0.1", None), refuse=refuse)
    return globals()["app"]
