"""The response to `/status-env`: an environment's share and backlog, by which it decides to pause. Pure.

Queued groups count. A lost batch does not: its step was counted when it was first served, and an environment
that adds the queue to the step would count it twice and end one batch too early. Groups that are set aside do
not count either, or they would pause environments for good; nor does a queue that is long enough for a batch
but whose groups do not add up to one: it needs more groups, not a pause.

Sums over environments are updated only for those whose groups changed, so the cost of a poll does not grow
with the number of environments.
"""

from __future__ import annotations

from hermes.core.json import JSONObject
from hermes.rollouts.core.packing import Demand
from hermes.rollouts.core.state import ApiState

MIN_WEIGHT = 0.01


class Shares:
    def __init__(self, state: ApiState) -> None:
        self._state = state
        self._basis: tuple[Demand, frozenset[int], int] | None = None
        """The inputs of all sums: the demand, the sizes that fit, the largest group."""
        self._sequences: dict[int | None, int] = {}
        self._available: dict[int | None, int] = {}
        """Sequences of each environment beyond its minimum, in whole packs."""
        self._all_sequences = 0
        self._all_available = 0
        self._all_weight = 0.0
        self._all_minimums = 0.0

    def figures(self, env_id: int) -> JSONObject:
        """The response to a poll by this environment, which must be registered."""
        state = self._state
        largest = self._refresh()
        registration = state.envs[env_id].registration
        own_sizes = [size for size in state.fitting() if (env_id, size) in state.queue.lanes]
        group_size = max(registration.group_size, *own_sizes, 1)
        own_sequences = self._sequences.get(env_id, 0)
        other_sequences = self._all_available - self._available.get(env_id, 0)
        if 0 < state.demand().batch_size <= self._all_sequences and not state.adds_up():
            own_sequences = other_sequences = 0
        weight = _area(registration.max_token_length, registration.weight)
        return {
            "current_step": state.step,
            "queue_size": (own_sequences + other_sequences) // group_size,
            "unallocated_fraction": 1.0 - min(self._all_minimums, 1.0),
            "self_queue_size": own_sequences // group_size,
            "max_group_size": largest,
            "env_weight": max(MIN_WEIGHT, weight / self._all_weight if self._all_weight > 0 else 0.0),
        }

    def _refresh(self) -> int:
        """Updates the sums; returns the size of the largest queued group."""
        state = self._state
        fitting = state.fitting()
        basis = (state.demand(), fitting, max([1, *fitting]))
        changed = state.changed_envs
        if self._basis is None or basis[0] is not self._basis[0] or basis[1:] != self._basis[1:]:
            self._basis = basis
            self._sequences, self._available = {}, {}
            self._all_sequences = self._all_available = 0
            changed = {env_id for env_id, _ in state.queue.lanes}
            connected = [env.registration for env in state.envs.values() if env.connected]
            self._all_weight = sum(_area(env.max_token_length, env.weight) for env in connected)
            self._all_minimums = sum(basis[0].minimums.values())
        for env_id in changed:
            queued = sum(size * len(state.queue.lanes.get((env_id, size), ())) for size in fitting)
            self._update_env(env_id, queued, basis)
        state.changed_envs.clear()
        return basis[2]

    def _update_env(
        self, env_id: int | None, sequences: int, basis: tuple[Demand, frozenset[int], int]
    ) -> None:
        demand, _, largest = basis
        share = demand.minimums.get(env_id, 0.0) if env_id is not None else 0.0
        available = max(0, -(-sequences // largest) * largest - int(demand.batch_size * share))
        self._all_available += available - self._available.get(env_id, 0)
        self._available[env_id] = available
        self._all_sequences += sequences - self._sequences.get(env_id, 0)
        self._sequences[env_id] = sequences


def _area(max_token_length: int, weight: float) -> float:
    return max(0, max_token_length) * max(0.0, weight)
