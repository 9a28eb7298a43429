"""One run as the trajectory API sees it: trainer, environments, queue, leases. Pure: time is an argument.

Every change is one method, called live and again when the log is replayed, so both give the same state. A
group is always in exactly one place: an environment's buffer, the queue, or a lease.

A served batch is a lease until it is known to have arrived; a lost one waits at the head, unchanged, and is
served again under the same id. A lease without a time limit is bound to the connection it was served on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hermes.rollouts.core.buffer import Buffer
from hermes.rollouts.core.packing import Demand, choose, why_none
from hermes.rollouts.core.queue import Queue, QueuedGroup
from hermes.rollouts.schema import EnvRegistration, Registration

MAX_KEYS = 10_000
"""Idempotency keys remembered."""


@dataclass(slots=True)
class Env:
    """A registered environment."""

    id: int
    wandb_name: str
    registration: EnvRegistration
    last_seen_s: float
    silent: bool = False
    """Not heard of for too long: as good as disconnected, until it is heard of again."""
    disconnected: bool = False
    """It said goodbye; only a new registration brings it back."""

    @property
    def connected(self) -> bool:
        return not (self.silent or self.disconnected)


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch that was served and is not known to have arrived."""

    id: int
    groups: tuple[QueuedGroup, ...]
    step: int
    """The run's step once this batch was served."""
    expires_s: float | None = None
    """None: it is lost when its connection breaks."""
    redelivered: int = 0
    """How often it was served again."""
    waiting: bool = False
    """Lost: it is to be served again before anything else."""


class Accepted(NamedTuple):
    """What became of a posted group."""

    buffered: int | None
    """Sequences now in its environment's buffer, if it went there."""
    reason: str | None
    """Why it is set aside, if it is."""


@dataclass(slots=True)
class ApiState:
    registration: Registration | None = None
    started: bool = False
    """The trainer has asked for a batch: environments may register."""
    step: int = 0
    envs: dict[int, Env] = field(default_factory=dict)
    queue: Queue = field(default_factory=Queue)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    """Idempotency keys of the latest posts, oldest first → the number of groups each brought."""
    next_env_id: int = 0
    next_lease_id: int = 1
    kept_groups: int = 0
    kept_bytes: int = 0
    """Of all groups there are, wherever they are."""
    touched: set[int | None] = field(default_factory=set)
    """Environments whose waiting groups have changed since somebody emptied this set."""
    _demand: Demand | None = None

    def register(self, registration: Registration) -> None:
        """The first trainer sets up the run; data that came before it is kept."""
        if self.registration is None:
            self.registration = registration
            self.step = registration.starting_step
            self._demand = None

    def start(self) -> None:
        self.started = self.registration is not None

    def register_env(self, wanted: EnvRegistration, now_s: float) -> Env | None:
        """None before the trainer has started."""
        if not self.started:
            return None
        same = sum(env.registration.desired_name == wanted.desired_name for env in self.envs.values())
        env = Env(self.next_env_id, f"{wanted.desired_name}_{same}", wanted, now_s)
        self.envs[env.id] = env
        self.next_env_id += 1
        self._demand = None
        return env

    def disconnect(self, env_id: int) -> None:
        if env_id in self.envs:
            self.envs[env_id].disconnected = True
            self._demand = None

    def hear(self, env_id: int, now_s: float) -> None:
        """The environment gave a sign of life."""
        env = self.envs[env_id]
        env.last_seen_s = now_s
        if env.silent:
            env.silent = False
            self._demand = None

    def notice_silence(self, before_s: float) -> None:
        """Environments last heard of before `before_s` are silent."""
        for env in self.envs.values():
            if env.connected and env.last_seen_s < before_s:
                env.silent = True
                self._demand = None

    def demand(self) -> Demand:
        """What a batch must be like now; of size 0 before the trainer has registered."""
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
        """The queued group sizes that can be part of a batch: all of them while nobody knows its size."""
        sizes = self.queue.sizes
        return self.demand().fitting(sizes) if self.registration else frozenset(sizes)

    def accept(self, group: QueuedGroup) -> Accepted:
        """Queues the group, or keeps it with its environment's other parts of a group."""
        self.touched.add(group.env_id)
        self.kept_groups += 1
        self.kept_bytes += group.bytes
        env = self.envs.get(group.env_id) if group.env_id is not None else None
        target = env.registration.group_size if env else group.size
        if env is None or group.size == target:
            self.queue.push(group)
            return Accepted(None, self.misfit(group.size))
        buffer = self.buffers.setdefault(env.id, Buffer(target))
        if 0 < group.size < target:
            for whole in buffer.add(group):
                self.queue.push(whole)
            return Accepted(buffer.sequences, None)
        self.queue.push(group)  # no other part can make it a whole group
        return Accepted(buffer.sequences, self.misfit(group.size))

    def remember(self, key: str, groups: int) -> None:
        """A post with this idempotency key was taken."""
        self.answered[key] = groups
        if len(self.answered) > MAX_KEYS:
            del self.answered[next(iter(self.answered))]

    def misfit(self, size: int) -> str | None:
        """Why a group of this size cannot be part of any batch; None if it can, or nobody knows yet."""
        demand = self.demand()
        if self.registration is None or size in demand.fitting({*self.queue.sizes, size}):
            return None
        if size == 0:
            return "set aside: the group has no sequences"
        if size > demand.batch_size:
            return f"set aside: {size} sequences are more than a batch of {demand.batch_size}"
        return f"set aside: groups of {size} sequences do not add up to a batch of {demand.batch_size}"

    def would_be_held(self, env_id: int | None, size: int) -> bool:
        """Whether a group could not be served as things stand, were it accepted now."""
        env = self.envs.get(env_id) if env_id is not None else None
        if env and 0 < size < env.registration.group_size:
            buffer = self.buffers.get(env.id)
            return buffer is None or not buffer.completes(size)
        return self.misfit(size) is not None

    def held(self, env_id: int | None) -> int:
        """Groups of the environment that cannot be served as things stand: set aside, or in its buffer."""
        misfits = set(self.queue.sizes) - self.fitting()
        set_aside = sum(len(self.queue.lanes.get((env_id, size), ())) for size in misfits)
        return set_aside + (len(self.buffers[env_id].parts) if env_id in self.buffers else 0)

    def set_aside(self) -> int:
        """Queued groups that cannot be part of any batch as things stand."""
        fitting = self.fitting()
        return sum(len(lane) for (_, size), lane in self.queue.lanes.items() if size not in fitting)

    def lease_batch(self, expires_s: float | None) -> Lease | None:
        """The next batch: the oldest lost one, else a new one, which counts as a step."""
        lost = min((lease.id for lease in self.leases.values() if lease.waiting), default=None)
        if lost is not None:
            return self.lease_again(lost, expires_s)
        groups = choose(self.queue.lanes, self.demand()) if self.registration else []
        if not groups:
            return None
        lease = Lease(self.next_lease_id, tuple(groups), self.step + 1, expires_s)
        self.serve(lease)
        return lease

    def lease_again(self, lease_id: int, expires_s: float | None) -> Lease:
        """The same batch once more; it must not be finished."""
        former = self.leases[lease_id]
        lease = replace(former, redelivered=former.redelivered + 1, waiting=False, expires_s=expires_s)
        self.serve(lease)
        return lease

    def serve(self, lease: Lease) -> None:
        """The lease is out with a trainer. Its groups leave the queue; a new one is a step."""
        if lease.id not in self.leases:
            self.queue.remove(lease.groups)
            self.step += 1
        self.next_lease_id = max(self.next_lease_id, lease.id + 1)
        self.leases[lease.id] = lease
        self.touched.update(group.env_id for group in lease.groups)

    def why_no_batch(self) -> str:
        return why_none(self.queue.lanes, self.demand())

    def lose(self, lease_id: int) -> None:
        """The batch did not arrive: it waits to be served again."""
        if lease := self.leases.get(lease_id):
            self.leases[lease_id] = replace(lease, waiting=True)
            self.touched.update(group.env_id for group in lease.groups)

    def renew(self, lease_ids: Iterable[int], expires_s: float) -> list[int]:
        """The trainer that has these batches still works on them; a lost one is its own again.

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
                self.lose(lease.id)

    def finish(self, lease_id: int) -> Iterable[QueuedGroup]:
        """The batch has arrived; returns the groups that are gone now."""
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return ()
        self.touched.update(group.env_id for group in lease.groups)
        self.kept_groups -= len(lease.groups)
        self.kept_bytes -= sum(group.bytes for group in lease.groups)
        return lease.groups

    def groups(self) -> Iterable[QueuedGroup]:
        """Every group there is."""
        yield from self.queue
        for buffer in self.buffers.values():
            yield from buffer.parts
        for lease in self.leases.values():
            yield from lease.groups

    def reset(self) -> None:
        """A new run may be registered. Ids of leases go on: an old one is never taken for a new one."""
        fresh = ApiState(next_lease_id=self.next_lease_id)
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))
