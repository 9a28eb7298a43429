"""Interrupted samples: what the store has of them stands for what would be paid for again.

A sample without an entry in the journal may have a trajectory in the store: its worker was killed, or its run
was stopped. One that had ended is taken over as it is; one that had not is continued from its recorded steps
(`agent.replay`). The journal entry says how many recorded calls were used, and how many were asked again
because what they saw could not be rebuilt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from hermes.agent.replay import RecordedSteps
from hermes.batch.plan import SampleKey
from hermes.batch.spec import RunSpec
from hermes.core import Header, JSONObject, Outcome, StopReason, Trajectory, canonical_json
from hermes.store import Reader, Record
from hermes.store.samples import SampleName

_STOPPING_S = 10.0
"""How long a worker of a killed run may need to notice it and stop."""
_POLL_S = 0.05
_NOT_FINAL = (StopReason.CANCELLED, StopReason.MAX_COST)
"""The ends of a run that was stopped. The limit of the sample itself is reached again at once."""


@dataclass(frozen=True)
class EarlierAttempt:
    record: Record
    paid_usd: float
    """The cost of it and of the attempts before it that no journal entry has."""

    @property
    def header(self) -> Header:
        return self.record.trajectory.header

    @property
    def final(self) -> bool:
        """Whether the attempt had ended, so that only its journal entry is missing."""
        return _is_final(self.record.trajectory.outcome)

    def recorded_steps(self, header: Header) -> RecordedSteps | None:
        """The steps for an attempt with this header; None if it has other conditions."""
        same = _conditions(self.header) == _conditions(header)
        return RecordedSteps(self.record) if same else None


async def find_attempt(reader: Reader, spec: RunSpec, key: SampleKey) -> EarlierAttempt | None:
    """The newest attempt at the sample; waits until the process that records it has stopped."""
    sample = SampleName(spec.name, spec.id, key.key, key.sample)
    deadline = time.monotonic() + _STOPPING_S
    trajectory = reader.latest_attempt(sample)
    while trajectory is not None and trajectory.outcome is None and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
        trajectory = reader.latest_attempt(sample)
    if trajectory is None:
        return None
    return EarlierAttempt(reader.record(trajectory), reader.unjournaled_cost_usd(trajectory.header.id))


def interrupted_cost_usd(reader: Reader, spec: RunSpec, keys: Iterable[SampleKey]) -> float:
    """The cost of attempts at these samples that no journal entry has."""
    names = (SampleName(spec.name, spec.id, key.key, key.sample) for key in keys)
    attempts = (reader.latest_attempt_id(name) for name in names)
    return sum(reader.unjournaled_cost_usd(attempt) for attempt in attempts if attempt is not None)


def effort(
    trajectory: Trajectory, earlier: EarlierAttempt | None, recorded: RecordedSteps | None
) -> JSONObject:
    """How much of an attempt at a continued sample was new; empty if there was none before it."""
    if earlier is None:
        return {}
    used = recorded.used if recorded else []
    replayed_usd = sum((step.call.cost_usd or 0.0) for step in used if step.call)
    cost_usd = trajectory.cost_usd
    return {
        "replayed_calls": len(used),
        "repeated_calls": earlier.record.trajectory.turns - len(used),
        "paid_usd": None if cost_usd is None else cost_usd - replayed_usd + earlier.paid_usd,
    }


def _conditions(header: Header) -> str:
    return canonical_json([header.model, list(header.tools), header.config])


def _is_final(outcome: Outcome | None) -> bool:
    return outcome is not None and not outcome.infrastructure and outcome.stop_reason not in _NOT_FINAL
