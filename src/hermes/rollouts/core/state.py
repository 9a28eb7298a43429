"""The state of one run: trainer, environments, queue, leases. Pure: time is an argument.

Every change is one method, called live and when the log is replayed, so both give the same state. A group is
always in exactly one of three: an environment's buffer, the queue, or a lease.

A batch is leased until it is acknowledged or has arrived. A lost lease is redelivered before any new batch,
unchanged and under the same id. A lease without a time limit is bound to the connection it was served on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hermes.rollouts.core.buffer import Buffer
from hermes.rollouts.core.packing import Demand, choose, no_batch_reason
from hermes.rollouts.core.queue import Queue, QueuedGroup
from hermes.rollouts.schema import EnvRegistration, Registration

MAX_KEYS = 10_000
"""Idempotency keys that are stored; the oldest are dropped first."""


@dataclass(slots=True)
class Env:
    """A registered environment."""

    id: int
    wandb_name: str
    registration: EnvRegistration
    last_seen_s: float
    silent: bool = False
    """It has sent no request for too long, and counts as disconnected until the next one."""
    disconnected: bool = False
    """It called /disconnect-env; only a new registration reconnects it."""

    @property
    def connected(self) -> bool:
        return not (self.silent or self.disconnected)


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch that was served and is neither acknowledged nor known to have arrived."""

    id: int
    groups: tuple[QueuedGroup, ...]
    step: int
    """The run's step after this batch was served."""
    expires_s: float | None = None
    """None: the lease is lost when its connection breaks."""
    redelivered: int = 0
    """How many times it was redelivered."""
    waiting: bool = False
    """Lost: it will be redelivered before any other batch."""


class Accepted(NamedTuple):
    """How a posted group was stored."""

    buffered: int | None
    """Sequences in its environment's buffer, if it was added there."""
    reason: str | None
    """Why the group is set aside; None if it is not."""


@dataclass(slots=True)
class ApiState:
    registration: Registration | None = None
    started: bool = False
    """The trainer has requested a batch: environments may register."""
    step: int = 0
    envs: dict[int, Env] = field(default_factory=dict)
    queue: Queue = field(default_factory=Queue)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    idempotency_keys: dict[str, int] = field(default_factory=dict)
    """Idempotency keys of the latest posts, oldest first → the number of groups in each post."""
    next_env_id: int = 0
    next_lease_id: int = 1
    kept_groups: int = 0
    kept_bytes: int = 0
    """The size of all groups: buffered, queued or leased."""
    changed_envs: set[int | None] = field(default_factory=set)
    """Environments whose queued groups have changed since `Shares` last cleared this set."""
    _demand: Demand | None = None
    _adds_up: tuple[tuple[int, Demand], bool] | None = None
    """The queue and the demand that `adds_up` was computed for, and its result."""

    def register(self, registration: Registration) -> None:
        """The first trainer sets up the run; groups posted before it are kept."""
        if self.registration is None:
            self.registration = registration
            self.step = registration.starting_step
            self._demand = None

    def start(self) -> None:
        self.started = self.registration is not None

    def register_env(self, registration: EnvRegistration, now_s: float) -> Env | None:
        """None before the trainer has started."""
        if not self.started:
            return None
        name = registration.desired_name
        same_name = sum(env.registration.desired_name == name for env in self.envs.values())
        env = Env(self.next_env_id, f"{name}_{same_name}", registration, now_s)
        self.envs[env.id] = env
        self.next_env_id += 1
        self._demand = None
        return env

    def disconnect(self, env_id: int) -> None:
        if env_id in self.envs:
            self.envs[env_id].disconnected = True
            self._demand = None

    def mark_seen(self, env_id: int, now_s: float) -> None:
        """The environment sent a request."""
        env = self.envs[env_id]
        env.last_seen_s = now_s
        if env.silent:
            env.silent = False
            self._demand = None

    def mark_silent(self, before_s: float) -> None:
        """Marks environments whose last request was before `before_s`."""
        for env in self.envs.values():
            if env.connected and env.last_seen_s < before_s:
                env.silent = True
                self._demand = None

    def demand(self) -> Demand:
        """The requirements for a batch now; its size is 0 before the trainer has registered."""
        if self._demand is None:
            connected = [env for env in self.envs.values() if env.connected]
            shares = {env.id: env.registration.min_batch_allocation for env in connected}
            self._demand = Demand(
                self.registration.batch_size if self.registration else 0,
                {env_id: share for env_id, share in shares.items() if share is not None},
                frozenset(env.registration.group_size for env in connected),
            )
        return self._demand

    def fitting(self) -> frozenset[int]:
        """The queued group sizes that can be part of a batch; all before the trainer has registered."""
        sizes = self.queue.sizes
        return self.demand().fitting(sizes) if self.registration else frozenset(sizes)

    def accept(self, group: QueuedGroup) -> Accepted:
        """Queues the group, or buffers it if it is a part of a group of its environment."""
        self.changed_envs.add(group.env_id)
        self.kept_groups += 1
        self.kept_bytes += group.bytes
        env = self.envs.get(group.env_id) if group.env_id is not None else None
        target = env.registration.group_size if env else group.size
        if env is None or group.size == target:
            self.queue.push(group)
            return Accepted(None, self.misfit_reason(group.size))
        buffer = self.buffers.setdefault(env.id, Buffer(target))
        if 0 < group.size < target:
            for whole in buffer.add(group):
                self.queue.push(whole)
            return Accepted(buffer.sequences, None)
        self.queue.push(group)  # no other part can make it a whole group
        return Accepted(buffer.sequences, self.misfit_reason(group.size))

    def remember(self, key: str, groups: int) -> None:
        """A post with this idempotency key was stored."""
        self.idempotency_keys[key] = groups
        if len(self.idempotency_keys) > MAX_KEYS:
            del self.idempotency_keys[next(iter(self.idempotency_keys))]

    def misfit_reason(self, size: int) -> str | None:
        """Why no batch can hold a group of this size; None if one can, or before a trainer registers."""
        demand = self.demand()
        if self.registration is None or size in demand.fitting({*self.queue.sizes, size}):
            return None
        if size == 0:
            return "set aside: the group has no sequences"
        if size > demand.batch_size:
            return f"set aside: {size} sequences are more than a batch of {demand.batch_size}"
        return f"set aside: groups of {size} sequences do not add up to a batch of {demand.batch_size}"

    def would_be_unservable(self, env_id: int | None, size: int) -> bool:
        """Whether a group, if it were accepted now, could not be served yet."""
        env = self.envs.get(env_id) if env_id is not None else None
        if env and 0 < size < env.registration.group_size:
            buffer = self.buffers.get(env.id)
            return buffer is None or not buffer.completes(size)
        return self.misfit_reason(size) is not None

    def unservable_groups(self, env_id: int | None) -> int:
        """How many groups of the environment cannot be served now: set aside, or in its buffer."""
        misfits = set(self.queue.sizes) - self.fitting()
        set_aside = sum(len(self.queue.lanes.get((env_id, size), ())) for size in misfits)
        return set_aside + (len(self.buffers[env_id].parts) if env_id in self.buffers else 0)

    def set_aside(self) -> int:
        """How many queued groups cannot be part of any batch now."""
        fitting = self.fitting()
        return sum(len(lane) for (_, size), lane in self.queue.lanes.items() if size not in fitting)

    def lease_batch(self, expires_s: float | None) -> Lease | None:
        """The next batch: the oldest lost one, else a new one, which counts as a step."""
        lost = min((lease.id for lease in self.leases.values() if lease.waiting), default=None)
        if lost is not None:
            return self.redeliver(lost, expires_s)
        groups = choose(self.queue.lanes, self.demand()) if self.registration else []
        if not groups:
            return None
        lease = Lease(self.next_lease_id, tuple(groups), self.step + 1, expires_s)
        self.serve(lease)
        return lease

    def redeliver(self, lease_id: int, expires_s: float | None) -> Lease:
        """Serves an outstanding batch again."""
        outstanding = self.leases[lease_id]
        lease = replace(
            outstanding, redelivered=outstanding.redelivered + 1, waiting=False, expires_s=expires_s
        )
        self.serve(lease)
        return lease

    def serve(self, lease: Lease) -> None:
        """The batch is served: the groups of a new lease leave the queue, and the step advances."""
        if lease.id not in self.leases:
            self.queue.remove(lease.groups)
            self.step += 1
        self.next_lease_id = max(self.next_lease_id, lease.id + 1)
        self.leases[lease.id] = lease
        self.changed_envs.update(group.env_id for group in lease.groups)

    def adds_up(self) -> bool:
        """Whether some of the queued groups have exactly as many sequences as a batch.

        Minimum shares do not count here: a batch that waits for one environment is still supply.
        """
        demand = self.demand()
        version = (self.queue.version, demand)
        if self._adds_up is None or self._adds_up[0] != version:
            anyone = replace(demand, minimums={})
            self._adds_up = (version, bool(choose(self.queue.lanes, anyone)))
        return self._adds_up[1]

    def no_batch_reason(self) -> str:
        reason = no_batch_reason(self.queue.lanes, self.demand())
        parts = sum(len(buffer.parts) for buffer in self.buffers.values())
        return f"{reason}; {parts} posts are parts of groups and wait for the rest" if parts else reason

    def mark_lost(self, lease_id: int) -> None:
        """The batch did not arrive, or its lease expired: it will be redelivered."""
        if lease := self.leases.get(lease_id):
            self.leases[lease_id] = replace(lease, waiting=True)
            self.changed_envs.update(group.env_id for group in lease.groups)

    def renew(self, lease_ids: Iterable[int], expires_s: float) -> list[int]:
        """Extends these leases; a lost one is outstanding again.

        Returns the ids that were renewed; the others are finished, or were never served.
        """
        renewed = [lease_id for lease_id in lease_ids if lease_id in self.leases]
        for lease_id in renewed:
            self.leases[lease_id] = replace(self.leases[lease_id], expires_s=expires_s, waiting=False)
        return renewed

    def expire(self, now_s: float) -> None:
        """Leases past their time limit are lost."""
        for lease in list(self.leases.values()):
            if not lease.waiting and lease.expires_s is not None and lease.expires_s <= now_s:
                self.mark_lost(lease.id)

    def finish(self, lease_id: int) -> Iterable[QueuedGroup]:
        """The batch has arrived. Returns its groups, which are no longer part of the state."""
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return ()
        self.changed_envs.update(group.env_id for group in lease.groups)
        self.kept_groups -= len(lease.groups)
        self.kept_bytes -= sum(group.bytes for group in lease.groups)
        return lease.groups

    def groups(self) -> Iterable[QueuedGroup]:
        """Every group of the run."""
        yield from self.queue
        for buffer in self.buffers.values():
            yield from buffer.parts
        for lease in self.leases.values():
            yield from lease.groups

    def reset(self) -> None:
        """Back to an empty run. Lease ids continue, so an old id never refers to a new lease."""
        fresh = ApiState(next_lease_id=self.next_lease_id)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))
