"""How many groups an environment should generate now: arithmetic on the API's status, without I/O.

`status` is the response to /status-env; `share` is the part of a batch that the environment can fill, in
sequences, or -1 while the batch size is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes.config.environment import ENV_REPLICA_VARIABLE
from hermes.envs.config import BaseEnvConfig, EvalHandlingEnum

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EnvReplica:
    """One of several processes that serve the same environment: each takes its share of the items."""

    index: int = 0
    count: int = 1

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> EnvReplica:
        number, _, count = environ.get(ENV_REPLICA_VARIABLE, "1/1").partition("/")
        return cls(int(number) - 1, int(count))

    @property
    def suffix(self) -> str:
        """For the names of files that every replica writes; empty if it is the only one."""
        return f"-{self.index + 1}" if self.count > 1 else ""

    def share(self, total: int) -> int:
        """This replica's part of a number of groups, at least one of a positive number."""
        return max(0, -(-total // self.count))

    def owns(self, position: int) -> bool:
        """Whether the environment's item at that position is this replica's: every `count`-th one is."""
        return position % self.count == self.index


def batch_share(config: BaseEnvConfig, status: Status) -> int:
    """Sequences of a batch that this environment can fill: its own minimum and the unallocated part."""
    if not status or config.batch_size == -1:
        return config.batch_size
    unallocated: float = status.get("unallocated_fraction", 1.0)
    return int(config.batch_size * (unallocated + (config.min_batch_allocation or 0.0)))


def is_crossed(before: int, now: int, interval: int) -> bool:
    """Whether a multiple of the interval is in (before, now], however many steps were made."""
    return interval > 0 and now // interval > before // interval


def has_enough(config: BaseEnvConfig, status: Status) -> bool:
    """Whether the batches taken and the groups queued are enough for all of the trainer's steps."""
    queued_batches = status["queue_size"] * config.group_size // max(1, config.batch_size)
    return bool(status["current_step"] + queued_batches > config.total_steps)


def must_pause(config: BaseEnvConfig, status: Status, share: int) -> bool:
    """Whether enough groups are queued, in total and of this environment."""
    if share == -1:
        return True
    if config.max_batches_offpolicy <= 0:
        return False
    full = status["queue_size"] * config.group_size >= config.max_batches_offpolicy * config.batch_size
    return bool(full and status["self_queue_size"] >= min_queued_groups(config, status))


def min_queued_groups(config: BaseEnvConfig, status: Status) -> int:
    """Groups that an environment with a minimum allocation keeps queued."""
    if config.min_batch_allocation is None:
        return 0
    largest: int = max(1, status["max_group_size"])
    sequences = config.min_batch_allocation * config.batch_size * config.max_batches_offpolicy
    return math.ceil(sequences / largest) * max(1, largest // config.group_size)


def waits_for_batch(run_status: Status, status: Status) -> bool:
    """Whether the trainer has published its last update and waits for the batch of this step.

    `run_status` is the response to /status, read before `status`. Atropos's own API does not say what the
    trainer does: there it counts as waiting."""
    trainer = run_status.get("trainer")
    if trainer is None:
        return True
    return trainer["waiting_s"] is not None and run_status["current_step"] == status["current_step"]


def missing_groups(config: BaseEnvConfig, status: Status, share: int, in_progress: int) -> int:
    """Groups that this environment still has to begin for the batch that the trainer waits for.

    One with an allocation sends just that, also while an environment that has the rest is not connected: the
    batch waits for it."""
    queued: int = status["queue_size"]
    if config.min_batch_allocation is not None:
        queued, share = status["self_queue_size"], round(config.min_batch_allocation * config.batch_size)
    return max(0, max(1, round(share / config.group_size)) - queued - in_progress)


def target_workers(
    config: BaseEnvConfig,
    status: Status,
    share: int,
    limit: int,
    evaluating: bool,
    replica: EnvReplica = EnvReplica(),  # noqa: B008 - frozen
) -> int:
    """How many groups should be in progress, at most `limit`. Running workers above it are not stopped."""
    if evaluating and config.eval_handling == EvalHandlingEnum.STOP_TRAIN:
        return 0
    if evaluating and config.eval_handling == EvalHandlingEnum.LIMIT_TRAIN:
        limit = int(limit * config.eval_limit_ratio)
    if config.max_batches_offpolicy > 0:
        room = config.max_batches_offpolicy * share // config.group_size - status["queue_size"]
        room = replica.share(room)
        limit = min(limit, max(room, min_queued_groups(config, status) - status["self_queue_size"]))
    return max(0, limit)
