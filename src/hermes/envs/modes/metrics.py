"""What an environment reports: rollouts for display, timings, and W&B where it is configured.

W&B counts as configured if WANDB_API_KEY or WANDB_MODE is set. Where it is configured and its package is not
installed, that is logged once, when serving starts. Where it is not configured, nothing is sent. A report
that fails is logged and never stops a run.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from types import ModuleType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from hermes.envs.base import BaseEnv

logger = logging.getLogger(__name__)

_TIMED = (
    ("train_perf/task_duration", "task_duration", None),
    ("train_perf/succeeded_task_duration", "succeeded_task_duration", "train/items_sent_to_api"),
    ("train_perf/failed_task_duration", "failed_task_duration", "train/items_rejected"),
    ("train_perf/mainloop_timings", "mainloop_timings", None),
    ("train_perf/workers_added_per_attempt", "workers_added_list", None),
)


def wandb_is_configured(env: BaseEnv) -> bool:
    if not env.config.use_wandb or os.environ.get("WANDB_MODE") == "disabled":
        return False
    return bool(os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE"))


def wandb_if_configured(env: BaseEnv) -> ModuleType | None:
    """The package, if it is configured and installed; the stand-in of the import shim does not count."""
    if not wandb_is_configured(env) or importlib.util.find_spec("wandb") is None:
        return None
    wandb = importlib.import_module("wandb")
    return None if getattr(wandb, "IS_STAND_IN", False) is True else wandb


def start_wandb(env: BaseEnv) -> None:
    if (wandb := wandb_if_configured(env)) is None:
        return
    name = f"{env.config.wandb_name or env.display_name}-{date.today():%Y-%m-%d}-{uuid4().hex[:6]}"
    try:
        wandb.init(
            name=name,
            project=env.wandb_project,
            group=env.wandb_group,
            config=env.config.model_dump(mode="json"),
        )
    except wandb_errors(wandb) as error:
        logger.warning("W&B could not be started: %s", error)


def wandb_errors(wandb: ModuleType) -> tuple[type[Exception], ...]:
    """What a report may fail with: W&B's own errors derive from one class of its."""
    usual = (OSError, RuntimeError, ValueError)
    own = getattr(wandb, "Error", None)
    return (*usual, own) if isinstance(own, type) and issubclass(own, Exception) else usual


def send_wandb(env: BaseEnv, metrics: dict[str, Any]) -> None:
    wandb = wandb_if_configured(env)
    if wandb is None or getattr(wandb, "run", None) is None:
        return
    try:
        wandb.log(metrics, step=env.curr_step)
    except wandb_errors(wandb) as error:
        logger.warning("W&B did not take the metrics of step %d: %s", env.curr_step, error)


def summary(name: str, data: Sequence[float], metrics: dict[str, Any]) -> dict[str, Any]:
    """Mean, deviation, largest and smallest, under four names."""
    metrics[f"{name}_mean"] = statistics.fmean(data)
    metrics[f"{name}_std"] = statistics.pstdev(data)
    metrics[f"{name}_max"] = max(data)
    metrics[f"{name}_min"] = min(data)
    return metrics


def timings(env: BaseEnv, metrics: dict[str, Any]) -> dict[str, Any]:
    """How long things took since the last report; the lists start anew."""
    for name, attribute, count in _TIMED:
        values: list[float] = getattr(env, attribute)
        if len(values) > 1:
            summary(name, values, metrics)
            if count:
                metrics[count] = len(values)
            setattr(env, attribute, [])
    return metrics


def completion_lengths(env: BaseEnv) -> dict[str, Any]:
    lengths = env.completion_lengths
    if not lengths:
        return {}
    near_the_end = 0.95 * env.max_token_len
    return {
        "train/completion_lengths": statistics.fmean(lengths),
        "train/completion_lengths_std": statistics.pstdev(lengths),
        "train/completion_lengths_max": max(lengths),
        "train/completion_lengths_min": min(lengths),
        "train/completion_lengths_p95": statistics.fmean(length > near_the_end for length in lengths),
    }


def conversation_text(group: Mapping[str, Any], index: int) -> str:
    """A rollout without tokens, as its messages."""
    messages = group.get("messages")
    return json.dumps(messages[index], ensure_ascii=False, default=str) if messages else ""


def rollout_table(env: BaseEnv) -> Any:
    """The kept rollouts as a W&B table; None where W&B is off or nothing was kept."""
    wandb = wandb_if_configured(env)
    if wandb is None or not env.rollouts_for_wandb:
        return None
    table = wandb.Table(columns=["text", "score"])
    for group in env.rollouts_for_wandb:
        for text, score in group:
            table.add_data(text, score)
    return table
