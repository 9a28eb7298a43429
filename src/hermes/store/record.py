"""Everything that the store holds about one trajectory, as one value.

`Reader.record` gives it and `Writer.restore` takes it: restored into another store it is the same record
again. Not part of it is what belongs to a store and not to a trajectory: which process recorded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes.core import JSONObject, Message, Rating, Reward, Trajectory
from hermes.errors import StoreError
from hermes.store import sqlite
from hermes.store.rows import Rows


class ModelInput(NamedTuple):
    """The input of a model call."""

    messages: tuple[Message, ...]
    tools: tuple[JSONObject, ...]


@dataclass(frozen=True, slots=True)
class Record:
    trajectory: Trajectory
    inputs: Mapping[int, ModelInput] = field(default_factory=dict)
    """By the index of the model step."""
    rewards: tuple[Reward, ...] = ()
    ratings: tuple[Rating, ...] = ()
    """All of them, those that a later one withdrew included."""
    finished_at_ms: int | None = None
    """None if no outcome was written: the recording process died."""


class RefusedError(StoreError):
    """A record that the database does not take; nothing of it was stored."""


def insert(rows: Rows, record: Record, now_ms: int) -> None:
    """The whole record, inside a transaction that undoes all of it if any of it fails."""
    header, outcome = record.trajectory.header, record.trajectory.outcome
    if outcome is None:
        raise RefusedError(f"trajectory {header.id} is not finished")
    try:
        rows.insert_trajectory(header)
        for step in record.trajectory.steps:
            model_input = record.inputs.get(step.index)
            rows.insert_step(
                header.id,
                step,
                model_input and model_input.messages,
                model_input.tools if model_input else (),
            )
        finished_at_ms = now_ms if record.finished_at_ms is None else record.finished_at_ms
        rows.insert_outcome(header.id, outcome, finished_at_ms, record.trajectory)
        for reward in record.rewards:
            rows.insert_reward(reward)
        for rating in record.ratings:
            rows.insert_rating(rating)
    except (ValueError, OverflowError, sqlite.dbapi().IntegrityError) as error:
        raise RefusedError(f"trajectory {header.id} cannot be stored: {error}") from error
