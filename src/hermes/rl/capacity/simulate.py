"""A small simulation of a run: environment processes, engine replicas, the trajectory API and the trainer.

The unit is a group. A group alternates between its environment process (one core, first come first served),
the engine's front (the same) and the decode steps of one replica, which its running sequences share. The
trainer takes a batch as soon as enough groups are queued; its passes share the replicas with sampling, half
each, as the engine does. Environments start groups while fewer than the allowed batches are queued. Nothing
is random.

Not simulated: failures, evaluation, checkpoints, lengths beyond the longest member of a group, and cores that
processes have to share.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

_STEPS, _WARM_UP = 9, 3
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What the parts of one step take, each alone. All are seconds."""

    env_turn_s: float
    """An environment process, for one turn of a group."""
    front_turn_s: float
    """The engine's front, for the requests of one turn of a group."""
    turns: int
    decode_steps: float
    """Of one turn, up to the end of the group's longest answer."""
    prefill_s: float
    """Of one turn of a group, on a replica, with what its interpreter does for the requests."""
    decode_s: Callable[[int], float]
    """A decode step with that many groups on a replica."""
    post_s: float
    """The trajectory API, for a group."""
    host_s: float
    """The trainer and the engine outside the device, for a step."""
    train_s: float
    """The passes of a step, split over the replicas."""
    handover_s: float
    """Gradients to the optimizer and new weights to every replica."""
    turn_gap_s: float
    """How long an environment may take to see that there is room in the queue."""


@dataclass(frozen=True, slots=True)
class FleetSize:
    replicas: int
    environments: int
    groups: int
    """Of a batch."""
    queue_groups: int
    """That may be queued before environments pause."""
    groups_per_environment: int
    """In progress at once."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """Means over the steps after the warm-up."""

    step_s: float
    busy_s: dict[str, float]
    """Per step and part, the seconds that its busiest process or device worked: environment, front, api,
    sampling, training, trainer, hand-over."""
    staleness: float
    """Steps between the start of a group and its training."""


@dataclass(slots=True, eq=False)
class _Group:
    environment: int
    turns_left: int
    started_step: int
    decode_left: float = 0.0
    replica: int = 0


@dataclass(slots=True, eq=False)
class _Replica:
    running: list[_Group] = field(default_factory=list)
    backlog_s: float = 0.0
    """Prefill that has to be computed first."""


class RunSimulation:
    def __init__(self, times: StageTimes, fleet: FleetSize) -> None:
        self._times, self._fleet = times, fleet
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._replicas = [_Replica() for _ in range(fleet.replicas)]
        self._free_at_s: dict[str, float] = {}
        """When a process that serves first come first served is free again."""
        self._busy_s: dict[str, float] = {}
        self._in_progress = [0] * fleet.environments
        self._queue: list[_Group] = []
        self._trainer_busy = False
        self._train_left_s = 0.0
        self._steps = 0
        self._step_ends_s: list[float] = []
        self._staleness: list[float] = []
        self._warm_busy_s: dict[str, float] = {}

    def run(self) -> SimulatedStep:
        self._fill_environments()
        while self._steps < _STEPS:
            self._advance()
        steps = _STEPS - _WARM_UP
        busy_s: dict[str, float] = {}
        for name, total_s in self._busy_s.items():
            part = name.partition(":")[0]
            share_s = (total_s - self._warm_busy_s.get(name, 0.0)) / steps
            busy_s[part] = max(busy_s.get(part, 0.0), share_s)
        step_s = (self._step_ends_s[-1] - self._step_ends_s[_WARM_UP - 1]) / steps
        late = self._staleness[_WARM_UP:]
        return SimulatedStep(step_s, busy_s, sum(late) / len(late))

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (time_s, self._numbers, action))

    def _serve(self, process: str, seconds: float, then: Callable[[], None]) -> None:
        """Work for a process that does one thing after another."""
        begin_s = max(self._now_s, self._free_at_s.get(process, 0.0))
        self._free_at_s[process] = begin_s + seconds
        self._busy_s[process] = self._busy_s.get(process, 0.0) + seconds
        self._at(begin_s + seconds, then)

    def _advance(self) -> None:
        """To the next event of a process or of a replica."""
        device_s = min((self._until_change(replica) for replica in self._replicas), default=math.inf)
        if self._train_left_s > 0:
            device_s = min(device_s, self._train_left_s / self._train_rate())
        event_s = self._events[0][0] - self._now_s if self._events else math.inf
        passed_s = min(device_s, event_s)
        if math.isinf(passed_s):
            raise AssertionError("the simulation has nothing left to do")
        self._pass(max(0.0, passed_s))
        if event_s <= device_s:
            heapq.heappop(self._events)[2]()

    def _share(self) -> float:
        """Of a replica's time, for sampling."""
        return 0.5 if self._train_left_s > 0 else 1.0

    def _train_rate(self) -> float:
        return 0.5 if any(replica.running for replica in self._replicas) else 1.0

    def _until_change(self, replica: _Replica) -> float:
        if replica.backlog_s > _EPSILON:
            return replica.backlog_s / self._share()
        if not replica.running:
            return math.inf
        shortest = min(group.decode_left for group in replica.running)
        return shortest * self._times.decode_s(len(replica.running)) / self._share()

    def _pass(self, seconds: float) -> None:
        """Lets the replicas work for that long."""
        share, rate = self._share(), self._train_rate()
        self._now_s += seconds
        for number, replica in enumerate(self._replicas):
            if not replica.running:
                continue
            self._count(f"sampling:{number}", seconds * share)
            if replica.backlog_s > _EPSILON:
                replica.backlog_s = max(0.0, replica.backlog_s - seconds * share)
                continue
            steps = seconds * share / self._times.decode_s(len(replica.running))
            for group in replica.running:
                group.decode_left -= steps
            for group in [group for group in replica.running if group.decode_left <= _EPSILON]:
                replica.running.remove(group)
                self._after_turn(group)
        if self._train_left_s > 0:
            self._count("training", min(self._train_left_s, seconds * rate))
            self._train_left_s -= seconds * rate
            if self._train_left_s <= _EPSILON:
                self._train_left_s = 0.0
                self._serve("hand-over", self._times.handover_s, self._end_step)

    def _count(self, part: str, seconds: float) -> None:
        self._busy_s[part] = self._busy_s.get(part, 0.0) + seconds

    def _fill_environments(self) -> None:
        for environment in range(self._fleet.environments):
            self._start_groups(environment)

    def _start_groups(self, environment: int) -> None:
        """As many as there is room for in the queue."""
        room = self._fleet.queue_groups - len(self._queue)
        target = min(self._fleet.groups_per_environment, room)
        while self._in_progress[environment] < target:
            self._in_progress[environment] += 1
            self._begin_turn(_Group(environment, self._times.turns, self._steps))

    def _begin_turn(self, group: _Group) -> None:
        def to_front() -> None:
            self._serve("front", self._times.front_turn_s, lambda: self._sample(group))

        self._serve(f"environment:{group.environment}", self._times.env_turn_s, to_front)

    def _sample(self, group: _Group) -> None:
        replica = min(self._replicas, key=lambda replica: len(replica.running))
        group.decode_left = self._times.decode_steps
        replica.running.append(group)
        replica.backlog_s += self._times.prefill_s

    def _after_turn(self, group: _Group) -> None:
        group.turns_left -= 1
        if group.turns_left:
            self._begin_turn(group)
        else:
            self._serve("api", self._times.post_s, lambda: self._post(group))

    def _post(self, group: _Group) -> None:
        self._in_progress[group.environment] -= 1
        self._queue.append(group)
        self._take_batch()
        self._start_groups(group.environment)

    def _take_batch(self) -> None:
        if self._trainer_busy or len(self._queue) < self._fleet.groups:
            return
        batch, self._queue = self._queue[: self._fleet.groups], self._queue[self._fleet.groups :]
        self._trainer_busy = True
        self._at(self._now_s + self._times.turn_gap_s, self._fill_environments)
        self._staleness.append(sum(self._steps - group.started_step for group in batch) / len(batch))

        def train() -> None:
            self._train_left_s = self._times.train_s

        self._serve("trainer", self._times.host_s, train)

    def _end_step(self) -> None:
        self._steps += 1
        self._step_ends_s.append(self._now_s)
        if self._steps == _WARM_UP:
            self._warm_busy_s = dict(self._busy_s)
        self._trainer_busy = False
        self._take_batch()
