"""The state as JSON and back, without the groups' bytes: groups are named by their ids. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hermes.core.json import JSONObject
from hermes.rollouts.core.buffer import Buffer
from hermes.rollouts.core.queue import Queue, QueuedGroup
from hermes.rollouts.core.state import ApiState, Env, Lease
from hermes.rollouts.schema import EnvRegistration, Registration


def describe_group(group: QueuedGroup) -> bytes:
    """The metadata of a group without its length in bytes, which follows from its location in the log."""
    env_id = "null" if group.env_id is None else group.env_id  # by hand: this runs for every group
    return f"[{group.id},{env_id},{group.size},{group.received_s!r}]".encode()


def read_group(meta: bytes, length_bytes: int) -> QueuedGroup:
    group_id, env_id, size, received_s = json.loads(meta)
    return QueuedGroup(group_id, env_id, size, length_bytes, received_s)


def describe_lease(lease: Lease) -> JSONObject:
    return {
        "id": lease.id,
        "groups": [group.id for group in lease.groups],
        "step": lease.step,
        "expires_s": lease.expires_s,
        "redelivered": lease.redelivered,
    }


def read_lease(data: JSONObject, groups: Mapping[int, QueuedGroup]) -> Lease:
    return Lease(**{**data, "groups": tuple(groups[group_id] for group_id in data["groups"])})


def describe(state: ApiState) -> JSONObject:
    return {
        "registration": state.registration.model_dump() if state.registration else None,
        "started": state.started,
        "step": state.step,
        "envs": [
            [env.id, env.wandb_name, env.registration.model_dump(), env.disconnected]
            for env in state.envs.values()
        ],
        "queue": [group.id for group in state.queue],
        "buffers": [[env_id, [part.id for part in b.parts]] for env_id, b in state.buffers.items()],
        "leases": [describe_lease(lease) for lease in state.leases.values()],
        "answered": state.idempotency_keys,
        "next_env_id": state.next_env_id,
        "next_lease_id": state.next_lease_id,
    }


def restore(data: JSONObject, groups: Mapping[int, QueuedGroup], now_s: float) -> ApiState:
    """The inverse of `describe`; `now_s` becomes the time of every environment's last request."""
    envs = {
        env_id: Env(env_id, name, EnvRegistration(**registration), now_s, disconnected=disconnected)
        for env_id, name, registration, disconnected in data["envs"]
    }
    state = ApiState(
        registration=Registration(**data["registration"]) if data["registration"] else None,
        started=data["started"],
        step=data["step"],
        envs=envs,
        queue=Queue(groups[group_id] for group_id in data["queue"]),
        buffers={
            env_id: Buffer(envs[env_id].registration.group_size, [groups[part] for part in parts])
            for env_id, parts in data["buffers"]
        },
        leases={lease["id"]: read_lease(lease, groups) for lease in data["leases"]},
        idempotency_keys=data["answered"],
        next_env_id=data["next_env_id"],
        next_lease_id=data["next_lease_id"],
    )
    for group in state.groups():
        state.kept_groups += 1
        state.kept_bytes += group.bytes
    return state
