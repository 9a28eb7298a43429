"""The state under any sequence of requests, held against the plainest possible model of it."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hermes.rollouts.core.packing import Demand
from hermes.rollouts.core.queue import QueuedGroup
from hermes.rollouts.core.shares import Shares
from hermes.rollouts.core.snapshot import describe, restore
from hermes.rollouts.core.state import ApiState
from hermes.rollouts.schema import EnvRegistration, Registration
from tests.rollouts.conftest import ENV, RUN
from tests.rollouts.sums import sums_of

SIZE = st.sampled_from([0, 1, 2, 2, 2, 3, 4, 4, 8, 9])


class Requests(RuleBasedStateMachine):
    """`groups` is what was acknowledged; each is in one place until its lease is finished."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ApiState()
        self.shares = Shares(self.state)
        self.groups: dict[int, QueuedGroup] = {}
        self.served: dict[int, tuple[QueuedGroup, ...]] = {}
        self.finished: set[int] = set()
        self.now_s = 0.0
        self.next_id = 1

    @initialize(early=st.lists(SIZE, max_size=3))
    def register(self, early: list[int]) -> None:
        for size in early:
            self.post(size, None)
        self.state.register(Registration(**RUN))
        self.state.register(Registration(**{**RUN, "batch_size": 99}))
        self.state.start()

    @rule(
        size=st.sampled_from([2, 4, 6]),
        share=st.sampled_from([None, None, 0.0, 0.3, 1.0]),
        weight=st.floats(-2, 5),
    )
    @precondition(lambda self: len(self.state.envs) < 5)
    def register_env(self, size: int, share: float | None, weight: float) -> None:
        wanted = {**ENV, "group_size": size, "min_batch_allocation": share, "weight": weight}
        env = self.state.register_env(EnvRegistration(**wanted), self.now_s)
        assert env is not None
        assert self.state.envs[env.id] is env

    @rule(size=SIZE, env=st.sampled_from([None, 0, 1, 2, 3]))
    def post(self, size: int, env: int | None) -> None:
        group = QueuedGroup(self.next_id, env if env in self.state.envs else None, size, 10, self.now_s)
        self.next_id += 1
        held = self.state.would_be_unservable(group.env_id, group.size)
        before = self.state.unservable_groups(group.env_id)
        accepted = self.state.accept(group)
        self.groups[group.id] = group
        if held:
            assert self.state.unservable_groups(group.env_id) == before + 1
        if accepted.reason:
            assert group.id in self.state.queue
            assert self.state.set_aside() > 0

    @rule(env=st.sampled_from([0, 1, 2, 3]), how=st.sampled_from(["disconnect", "hear"]))
    def change_env(self, env: int, how: str) -> None:
        if env in self.state.envs:
            self.state.disconnect(env) if how == "disconnect" else self.state.mark_seen(env, self.now_s)

    @rule(passed_s=st.sampled_from([1.0, 40.0]))
    def wait(self, passed_s: float) -> None:
        self.now_s += passed_s
        self.state.mark_silent(self.now_s - 60.0)
        self.state.expire(self.now_s)

    @rule(timed=st.booleans())
    def get_batch(self, timed: bool) -> None:
        waiting = [lease.id for lease in self.state.leases.values() if lease.waiting]
        step = self.state.step
        lease = self.state.lease_batch(self.now_s + 30 if timed else None)
        if lease is None:
            assert not waiting
            assert self.state.no_batch_reason()
        elif waiting:
            assert lease.id == min(waiting)
            assert (lease.groups, self.state.step) == (self.served[lease.id], step)
            assert lease.redelivered > 0
        else:
            assert sum(group.size for group in lease.groups) == RUN["batch_size"]
            assert (lease.step, self.state.step) == (step + 1, step + 1)
            assert lease.id not in self.served
            self.served[lease.id] = lease.groups

    @rule(data=st.data())
    @precondition(lambda self: self.state.leases)
    def renew_lease(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.state.leases)))
        assert self.state.renew([lease_id, 10**6], self.now_s + 30) == [lease_id]
        assert not self.state.leases[lease_id].waiting

    @rule(data=st.data())
    @precondition(lambda self: self.state.leases)
    def end_lease(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.state.leases)))
        if data.draw(st.booleans()):
            self.state.mark_lost(lease_id)
        else:
            gone = list(self.state.finish(lease_id))
            assert tuple(gone) == self.served[lease_id]
            self.finished.add(lease_id)
            for group in gone:
                del self.groups[group.id]

    @invariant()
    def every_group_is_in_one_place(self) -> None:
        assert sorted(group.id for group in self.state.groups()) == sorted(self.groups)
        assert self.state.kept_groups == len(self.groups)
        assert self.state.kept_bytes == 10 * len(self.groups)
        assert self.state.step == len(self.served)

    @invariant()
    def figures_are_what_the_formulas_say(self) -> None:
        for env_id in self.state.envs:
            assert self.shares.figures(env_id) == figures_by_formula(self.state, env_id)

    @invariant()
    def a_snapshot_says_everything(self) -> None:
        said = json.loads(json.dumps(describe(self.state)))
        again = restore(said, self.groups, self.now_s)
        assert describe(again) == said
        assert (again.kept_groups, again.kept_bytes) == (self.state.kept_groups, self.state.kept_bytes)


def figures_by_formula(state: ApiState, env_id: int) -> dict[str, object]:
    """One pass over everything for every environment, as the contract puts it."""
    demand: Demand = state.demand()
    fitting = demand.fitting(state.queue.sizes)
    queued = [group for group in state.queue if group.size in fitting]
    largest = max([1, *(group.size for group in queued)])
    wanted = state.envs[env_id].registration
    own_size = max([wanted.group_size, *(group.size for group in queued if group.env_id == env_id)])
    sequences: dict[int | None, int] = {}
    for group in queued:
        sequences[group.env_id] = sequences.get(group.env_id, 0) + group.size
    own = sequences.pop(env_id, 0)
    others = 0
    for other, count in sequences.items():
        share = demand.minimums.get(other, 0.0) if other is not None else 0.0
        others += max(0, math.ceil(count / largest) * largest - int(demand.batch_size * share))
    sums = sums_of(group.size for group in queued)
    if 0 < demand.batch_size <= max(sums) and demand.batch_size not in sums:
        own = others = 0
    connected = [env.registration for env in state.envs.values() if env.connected]
    total = sum(env.max_token_length * max(0.0, env.weight) for env in connected)
    weight = wanted.max_token_length * max(0.0, wanted.weight) / total if total > 0 else 0.0
    return {
        "current_step": state.step,
        "queue_size": (own + others) // own_size,
        "unallocated_fraction": 1.0 - min(1.0, sum(demand.minimums.values())),
        "self_queue_size": own // own_size,
        "max_group_size": largest,
        "env_weight": max(0.01, weight),
    }


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_others_data_counts_even_where_every_group_has_one_sequence() -> None:
    state = ApiState()
    state.register(Registration(**RUN))
    state.start()
    for _ in range(2):
        state.register_env(EnvRegistration(**{**ENV, "group_size": 1}), 0.0)
    for group_id in range(5):
        state.accept(QueuedGroup(group_id, 1, 1, 10, 0.0))
    assert Shares(state).figures(0)["queue_size"] == 5


def test_polling_does_not_change_an_environments_group_size() -> None:
    state = ApiState()
    state.register(Registration(**RUN))
    state.start()
    state.register_env(EnvRegistration(**ENV), 0.0)
    state.accept(QueuedGroup(1, 0, 4, 10, 0.0))
    assert Shares(state).figures(0)["self_queue_size"] == 1
    assert state.accept(QueuedGroup(2, 0, 2, 10, 0.0)).buffered is None


def test_set_aside_groups_do_not_pause_environments() -> None:
    state = ApiState()
    state.register(Registration(**RUN))
    state.start()
    state.register_env(EnvRegistration(**ENV), 0.0)
    for group_id in range(50):
        state.accept(QueuedGroup(group_id, None, 9, 10, 0.0))
    assert Shares(state).figures(0)["queue_size"] == 0


def test_a_queue_that_does_not_add_up_to_a_batch_does_not_pause_environments() -> None:
    state = ApiState()
    state.register(Registration(**{**RUN, "batch_size": 32}))
    state.start()
    state.register_env(EnvRegistration(**{**ENV, "group_size": 4}), 0.0)
    shares = Shares(state)
    for group_id in range(105):
        state.accept(QueuedGroup(group_id, None, 3, 10, 0.0))
    assert state.lease_batch(None) is None
    assert "do not add up to a batch of 32" in state.no_batch_reason()
    assert shares.figures(0)["queue_size"] == 0
    for group_id in (200, 201):
        state.accept(QueuedGroup(group_id, 0, 4, 10, 0.0))
    assert shares.figures(0)["queue_size"] > 32
    lease = state.lease_batch(None)
    assert lease is not None
    assert sum(group.size for group in lease.groups) == 32


@pytest.mark.parametrize("batch_size", [8, 11, 32])
@pytest.mark.parametrize("sizes", [(3, 1, 4), (3, 4), (2, 5, 7), (8,), (5, 6)])
def test_neither_side_waits_for_the_other_for_ever(sizes: tuple[int, ...], batch_size: int) -> None:
    """Environments pause while the queue holds two batches; a trainer that finds no batch has one running."""
    state = ApiState()
    state.register(Registration(**{**RUN, "batch_size": batch_size}))
    state.start()
    for size in sizes:
        state.register_env(EnvRegistration(**{**ENV, "group_size": size}), 0.0)
    if not state.demand().fitting(sizes):
        return  # no group of these sizes makes a batch: the trainer is told so
    shares, rng, ids = Shares(state), random.Random(0), itertools.count()
    waited = 0
    while state.step < 50:
        for env_id, size in enumerate(sizes):
            figures = shares.figures(env_id)
            if figures["queue_size"] * size < 2 * batch_size:
                parts = [size] if rng.random() < 0.5 or size == 1 else [1, size - 1]
                for part in parts:
                    state.accept(QueuedGroup(next(ids), env_id, part, 10, 0.0))
        lease = state.lease_batch(None)
        if lease is None:
            waited += 1
            assert waited < 50, state.no_batch_reason()
        else:
            waited = 0
            state.finish(lease.id)


def test_a_reset_gives_lease_ids_that_were_never_used() -> None:
    state = ApiState()
    for _ in range(2):
        state.register(Registration(**{**RUN, "batch_size": 2}))
        state.accept(QueuedGroup(state.next_lease_id, None, 2, 10, 0.0))
        lease = state.lease_batch(None)
        assert lease is not None
        state.reset()
        assert state.next_lease_id == lease.id + 1
    assert not list(state.groups())
