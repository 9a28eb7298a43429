"""A whole trajectory as one JSON object: everything the store holds about it."""

from __future__ import annotations

from dataclasses import asdict

from hermes.core import JSONObject, Step, Trajectory
from hermes.store import Reader


def to_record(reader: Reader, trajectory: Trajectory, *, with_inputs: bool) -> JSONObject:
    """`with_inputs` adds the messages and tool schemas that each model call saw."""
    trajectory_id = trajectory.header.id
    return {
        "header": asdict(trajectory.header),
        "steps": [_step(reader, trajectory_id, step, with_inputs) for step in trajectory.steps],
        "outcome": trajectory.outcome.to_json() if trajectory.outcome else None,
        "usage": trajectory.usage.to_json(),
        "cost_usd": trajectory.cost_usd,
        "rewards": [asdict(reward) for reward in reader.rewards(trajectory_id)],
        "ratings": [asdict(rating) for rating in reader.ratings(trajectory_id)],
    }


def _step(reader: Reader, trajectory_id: str, step: Step, with_inputs: bool) -> JSONObject:
    data: JSONObject = {
        "index": step.index,
        "kind": step.kind.value,
        "message": step.message.to_json(),
        "started_at_ms": step.started_at_ms,
    }
    if step.ephemeral:
        data["ephemeral"] = True
    if step.result is not None:
        data["result"] = step.result.to_json()
    if step.call is not None:
        data["call"] = step.call.to_json()
        data["call"]["raw"] = step.call.raw
        data["call"]["tokens"] = asdict(step.call.tokens) if step.call.tokens else None
        if with_inputs:
            messages, tools = reader.model_input(trajectory_id, step)
            data["input"] = {"messages": [message.to_json() for message in messages], "tools": list(tools)}
    return data
