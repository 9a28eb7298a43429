"""Sixty seconds that say whether a run will learn, before it is started.

A few groups are sampled from the untrained policy, scored by the environment, and looked at as the trainer
would: does any group have something to learn from? The suggestions follow from that by fixed rules; the
estimates are extrapolated from what was measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.config.files import ensure_dir
from hermes.config.paths import logs_dir
from hermes.errors import HermesError
from hermes.rl.inference_test import Server, process, read_groups, server_for
from hermes.training.advantages import has_signal
from hermes.training.schedule import default_rl_rate, parameters_of

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject
    from hermes.rl.config import Resolved

GROUPS, SECONDS = 4, 60.0
_UPDATE_SHARE = 0.5
"""Time of an update against that of sampling its batch: a rough assumption, not measured."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the untrained policy did."""

    scores: tuple[tuple[float, ...], ...]
    sequence_tokens: float
    """Mean length, prompt included."""
    truncated: float | None
    """Share of rollouts cut off; None where the environment does not tell."""
    tool_errors: float | None
    """Share of tool calls that failed."""
    seconds: float


def preflight(
    config: Config, resolved: Resolved, groups: int = GROUPS, seconds: float = SECONDS
) -> JSONObject:
    """Samples, judges, suggests."""
    folder = ensure_dir(logs_dir(config.home) / "rl_training" / "preflight")
    stem = f"{resolved.selection.environment}_{time.time_ns() // 1000}"
    output, log = folder / f"{stem}.jsonl", folder / f"{stem}.log"
    size = min(8, int(resolved.values["env.group_size"]))
    overrides: JSONObject = {"total_steps": groups, "group_size": size, "use_wandb": False}
    begun_s = time.monotonic()
    problem = process(resolved, _policy(config, resolved), overrides, output, log, timeout_s=2 * seconds + 60)
    sampled = summarise(read_groups(output), time.monotonic() - begun_s)
    if not sampled.scores:
        raise HermesError(
            f"no group could be sampled: {problem or 'the environment gave none'}", f"see {log}"
        )
    return {**judge(sampled, resolved), "output_file": str(output), "log_file": str(log)}


def _policy(config: Config, resolved: Resolved) -> Server:
    return server_for(config, resolved.model)


def summarise(groups: Sequence[JSONObject], seconds: float) -> Sampled:
    overrides = [each for group in groups for each in group.get("overrides") or []]
    stops = [each["stop_reason"] for each in overrides if each.get("stop_reason")]
    calls = sum(int(each.get("tool_calls", 0)) for each in overrides)
    errors = sum(int(each.get("tool_errors", 0)) for each in overrides)
    lengths = [len(tokens) for group in groups for tokens in group["tokens"]]
    cut = ("max_tokens", "truncated", "context_full", "length")
    return Sampled(
        tuple(tuple(float(score) for score in group["scores"]) for group in groups),
        statistics.fmean(lengths) if lengths else 0.0,
        sum(stop in cut for stop in stops) / len(stops) if stops else None,
        errors / calls if calls else None,
        seconds,
    )


def judge(sampled: Sampled, resolved: Resolved) -> JSONObject:
    scores = [score for group in sampled.scores for score in group]
    passed = sum(score > 0 for score in scores) / len(scores)
    signal = sum(has_signal(group) for group in sampled.scores) / len(sampled.scores)
    return {
        "environment": resolved.selection.environment,
        "rollouts": len(scores),
        "pass_rate": passed,
        "mean_reward": statistics.fmean(scores),
        "groups_with_signal": signal,
        "truncation": sampled.truncated,
        "tool_errors": sampled.tool_errors,
        "suggested": _suggested(passed, signal, resolved),
        "estimate": _estimate(sampled, len(scores), resolved),
        "verdict": verdict(passed, signal, sampled.truncated or 0.0),
    }


def verdict(passed: float, signal: float, truncated: float) -> str:
    if truncated > 0.5:
        return "will hardly learn: most rollouts are cut off; raise max_token_length"
    if passed == 0:
        return "will not learn: no rollout earned anything; warm up with SFT or shape the reward"
    if signal == 0:
        return "will not learn: within each group all scores are equal; larger groups or other tasks"
    if passed > 0.95:
        return "little to learn: nearly every rollout succeeds already"
    if signal < 0.3:
        return f"will learn slowly: only {signal:.0%} of the groups have anything to compare"
    return f"will learn: {signal:.0%} of the groups have something to compare"


def _suggested(passed: float, signal: float, resolved: Resolved) -> JSONObject:
    """A group needs a success and a failure: rarer successes need larger groups."""
    now = int(resolved.values["env.group_size"])
    rare = min(passed, 1 - passed) or 0.02
    needed = next((size for size in (4, 8, 16, 32) if 1 - (1 - rare) ** size >= 0.8), 32)
    suggestion: JSONObject = {
        "group_size": max(now, needed) if signal < 0.5 else now,
        "learning_rate": default_rl_rate(parameters_of(resolved.model)),
    }
    if "env.agent_temperature" in resolved.values:
        suggestion["agent_temperature"] = 1.2 if passed > 0.95 else 1.0
    return suggestion


def _estimate(sampled: Sampled, rollouts: int, resolved: Resolved) -> JSONObject:
    values = resolved.values
    parameters = parameters_of(resolved.model) or 0.0
    step_s = sampled.seconds / rollouts * values["env.batch_size"] * (1 + _UPDATE_SHARE)
    tokens = sampled.sequence_tokens or values["env.max_token_length"]
    weights_gb = parameters * 4 / 1e9
    return {
        "seconds_per_step": round(step_s, 1),
        "hours": round(step_s * values["env.total_steps"] / 3600, 2),
        "memory_gb": round(1.3 * weights_gb + values["env.group_size"] * tokens * 2e-5, 2),
    }
