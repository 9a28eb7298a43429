"""Changes of the state other than posted groups, as JSON for the log. Pure.

`replay` applies an event to the state. It never fails on a log that a server wrote: an event about something
that no longer exists (a lease of a run that was reset) changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hermes.core.json import JSONObject
from hermes.rollouts.core.queue import QueuedGroup
from hermes.rollouts.core.snapshot import describe_lease, read_lease
from hermes.rollouts.core.state import ApiState, Lease
from hermes.rollouts.schema import EnvRegistration, Registration


def registered(registration: Registration) -> JSONObject:
    return {"type": "registered", "registration": registration.model_dump()}


def started() -> JSONObject:
    return {"type": "started"}


def env_registered(registration: EnvRegistration) -> JSONObject:
    return {"type": "env_registered", "registration": registration.model_dump()}


def env_disconnected(env_id: int) -> JSONObject:
    return {"type": "env_disconnected", "env_id": env_id}


def posted(key: str | None, groups: int) -> JSONObject:
    """Written before the groups of a post. A log that ends before the last of them does not have the post."""
    return {"type": "posted", "key": key, "groups": groups}


def announced_groups(event: JSONObject) -> int:
    """How many of the next records are groups of the same post; 0 for any other event."""
    return int(event["groups"]) if event["type"] == "posted" else 0


def served(lease: Lease) -> JSONObject:
    return {"type": "served", "lease": describe_lease(lease)}


def renewed(lease_ids: Sequence[int], expires_s: float) -> JSONObject:
    return {"type": "renewed", "lease_ids": list(lease_ids), "expires_s": expires_s}


def finished(lease_id: int) -> JSONObject:
    return {"type": "finished", "lease_id": lease_id}


def reset() -> JSONObject:
    return {"type": "reset"}


def replay(state: ApiState, event: JSONObject, groups: Mapping[int, QueuedGroup], now_s: float) -> None:
    """Applies the event to the state; `groups` are all groups that are still in the log."""
    handlers: dict[str, Callable[[], object]] = {
        "registered": lambda: state.register(Registration(**event["registration"])),
        "started": state.start,
        "env_registered": lambda: state.register_env(EnvRegistration(**event["registration"]), now_s),
        "env_disconnected": lambda: state.disconnect(event["env_id"]),
        "posted": lambda: _remember(state, event),
        "answered": lambda: _remember(state, event),  # in older logs, after the groups
        "served": lambda: _serve(state, event["lease"], groups),
        "renewed": lambda: state.renew(event["lease_ids"], event["expires_s"]),
        "finished": lambda: state.finish(event["lease_id"]),
        "reset": state.reset,
    }
    handlers[event["type"]]()


def _remember(state: ApiState, event: JSONObject) -> None:
    if event["key"] is not None:
        state.remember(event["key"], event["groups"])


def _serve(state: ApiState, data: JSONObject, groups: Mapping[int, QueuedGroup]) -> None:
    if data["id"] in state.leases or all(group_id in state.queue for group_id in data["groups"]):
        state.serve(read_lease(data, groups))
