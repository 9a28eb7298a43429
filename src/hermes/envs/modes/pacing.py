"""How much an environment should make now, as arithmetic on the API's status. Nothing here waits or asks.

`status` is the answer to /status-env; `share` is the part of a batch that the environment can fill, in
sequences, or -1 as long as the batch size is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hermes.envs.config import BaseEnvConfig, EvalHandlingEnum

Status = Mapping[str, Any]


def crossed(before: int, now: int, interval: int) -> bool:
    """Whether a multiple of the interval lies in (before, now], however many steps went by."""
    return interval > 0 and now // interval > before // interval


def has_enough(config: BaseEnvConfig, status: Status) -> bool:
    """Whether the trainer can make all its steps with what it has taken and what waits."""
    waiting = status["queue_size"] * config.group_size // max(1, config.batch_size)
    return bool(status["current_step"] + waiting > config.total_steps)


def must_pause(config: BaseEnvConfig, status: Status, share: int) -> bool:
    """Whether enough waits for the trainer, and enough of this environment's own."""
    if share == -1:
        return True
    if config.max_batches_offpolicy <= 0:
        return False
    full = status["queue_size"] * config.group_size >= config.max_batches_offpolicy * config.batch_size
    return bool(full and status["self_queue_size"] >= own_minimum(config, status))


def own_minimum(config: BaseEnvConfig, status: Status) -> int:
    """Groups of its own that an environment with a minimum share keeps waiting."""
    if config.min_batch_allocation is None:
        return 0
    largest: int = max(1, status["max_group_size"])
    sequences = config.min_batch_allocation * config.batch_size * config.max_batches_offpolicy
    return math.ceil(sequences / largest) * max(1, largest // config.group_size)


def wanted_workers(config: BaseEnvConfig, status: Status, share: int, most: int, evaluating: bool) -> int:
    """How many groups should be in the making. Fewer than there are means: start none."""
    if evaluating and config.eval_handling == EvalHandlingEnum.STOP_TRAIN:
        return 0
    if evaluating and config.eval_handling == EvalHandlingEnum.LIMIT_TRAIN:
        most = int(most * config.eval_limit_ratio)
    if config.max_batches_offpolicy > 0:
        room = config.max_batches_offpolicy * share // config.group_size - status["queue_size"]
        most = min(most, max(room, own_minimum(config, status) - status["self_queue_size"]))
    return max(0, most)
