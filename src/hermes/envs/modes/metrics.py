"""Metrics of a run: timings, completion lengths, a table of rollouts, and sending them to W&B.

W&B counts as configured if WANDB_API_KEY or WANDB_MODE is set and `use_wandb` is true. Where it is configured
but its package is not installed, a warning is logged once, when serving starts. Where it is not configured,
nothing is sent. A failure of W&B is logged and never stops a run.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from types import ModuleType
from typing import Any
from uuid import uuid4

from hermes.envs.config import BaseEnvConfig
from hermes.envs.modes.redaction import clean_json, clean_text

logger = logging.getLogger(__name__)

_MAX_TIMINGS = 1000
"""Timings of the main loop kept between two reports."""


@dataclass
class RunTimings:
    """Durations in seconds since the last report."""

    succeeded_groups: list[float] = field(default_factory=list)
    failed_groups: list[float] = field(default_factory=list)
    main_loop: list[float] = field(default_factory=list)
    workers_added: list[float] = field(default_factory=list)
    """Workers missing at each attempt to start some."""
    groups: list[float] = field(default_factory=list)
    """Succeeded and failed, in the order in which they ended."""

    def add_group(self, duration_s: float, *, succeeded: bool) -> None:
        self.groups.append(duration_s)
        (self.succeeded_groups if succeeded else self.failed_groups).append(duration_s)

    def add_turn(self, duration_s: float) -> None:
        self.main_loop.append(duration_s)
        del self.main_loop[:-_MAX_TIMINGS]

    def add_workers(self, count: int) -> None:
        self.workers_added.append(count)
        del self.workers_added[:-_MAX_TIMINGS]

    def report(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Adds summaries of all lists of more than one value to `metrics`, and empties those lists."""
        for name, durations, count_name in (
            ("train_perf/task_duration", self.groups, None),
            ("train_perf/succeeded_task_duration", self.succeeded_groups, "train/items_sent_to_api"),
            ("train_perf/failed_task_duration", self.failed_groups, "train/items_rejected"),
            ("train_perf/mainloop_timings", self.main_loop, None),
            ("train_perf/workers_added_per_attempt", self.workers_added, None),
        ):
            if len(durations) > 1:
                summarize(name, durations, metrics)
                if count_name:
                    metrics[count_name] = len(durations)
                durations.clear()
        return metrics


def summarize(name: str, data: Sequence[float], metrics: dict[str, Any]) -> dict[str, Any]:
    """Adds mean, standard deviation, maximum and minimum of the data to `metrics`."""
    metrics[f"{name}_mean"] = statistics.fmean(data)
    metrics[f"{name}_std"] = statistics.pstdev(data)
    metrics[f"{name}_max"] = max(data)
    metrics[f"{name}_min"] = min(data)
    return metrics


def summarize_lengths(lengths: Sequence[int], max_tokens: int) -> dict[str, Any]:
    """Metrics of completion lengths; `_p95` is the share of those longer than 95 % of the trainer's limit."""
    if not lengths:
        return {}
    return {
        "train/completion_lengths": statistics.fmean(lengths),
        "train/completion_lengths_std": statistics.pstdev(lengths),
        "train/completion_lengths_max": max(lengths),
        "train/completion_lengths_min": min(lengths),
        "train/completion_lengths_p95": statistics.fmean(length > 0.95 * max_tokens for length in lengths),
    }


def wandb_is_configured(config: BaseEnvConfig) -> bool:
    if not config.use_wandb or os.environ.get("WANDB_MODE") == "disabled":
        return False
    return bool(os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE"))


def load_wandb(config: BaseEnvConfig) -> ModuleType | None:
    """The package wandb, if it is configured and installed; the import shim's stand-in does not count."""
    if not wandb_is_configured(config) or importlib.util.find_spec("wandb") is None:
        return None
    wandb = importlib.import_module("wandb")
    return None if getattr(wandb, "IS_STAND_IN", False) is True else wandb


def start_wandb(config: BaseEnvConfig, name: str, project: str | None, group: str | None) -> None:
    if (wandb := load_wandb(config)) is None:
        return
    run_name = f"{name}-{date.today():%Y-%m-%d}-{uuid4().hex[:6]}"
    try:
        wandb.init(
            name=run_name, project=project, group=group, config=clean_json(config.model_dump(mode="json"))
        )
    except _wandb_errors(wandb) as error:
        logger.warning("W&B could not be started: %s", error)


def log_to_wandb(config: BaseEnvConfig, metrics: dict[str, Any], step: int) -> None:
    wandb = load_wandb(config)
    if wandb is None or getattr(wandb, "run", None) is None:
        return
    try:
        wandb.log(metrics, step=step)
    except _wandb_errors(wandb) as error:
        logger.warning("the metrics of step %d could not be sent to W&B: %s", step, error)


def _wandb_errors(wandb: ModuleType) -> tuple[type[Exception], ...]:
    """Errors that W&B may raise; those of its own derive from wandb.Error."""
    usual = (OSError, RuntimeError, ValueError)
    base = getattr(wandb, "Error", None)
    return (*usual, base) if isinstance(base, type) and issubclass(base, Exception) else usual


def rollout_table(config: BaseEnvConfig, rollouts: Sequence[Sequence[tuple[Any, ...]]]) -> Any:
    """The rollouts (groups of text and score) as a W&B table; None if W&B is off or there are none."""
    wandb = load_wandb(config)
    if wandb is None or not rollouts:
        return None
    table = wandb.Table(columns=["text", "score"])
    for group in rollouts:
        for text, score in group:
            table.add_data(clean_text(str(text)), score)
    return table


def format_messages(group: Mapping[str, Any], index: int) -> str:
    """The messages of one rollout as JSON, for rollouts without tokens."""
    messages = group.get("messages")
    return json.dumps(messages[index], ensure_ascii=False, default=str) if messages else ""
