"""One rollout of a program, and the proof: what it called, what came back, what would be trained."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from hermes.config.paths import db_path, logs_dir
from hermes.core.sequence import MASKED
from hermes.disk.files import ensure_dir
from hermes.errors import HermesError, UsageError
from hermes.rl.checks.inference_test import read_groups, run_process_mode
from hermes.rl.checks.preflight import START_S, open_policy
from hermes.store import Reader

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject
    from hermes.rl.config.resolve import Resolved

_ROLLOUT_S = 900.0
_WIDEST_MEAN_GAP = 0.05
"""Nats. The same weights and the same context differ by rounding only, also in bf16 on a CPU."""


def select_program(
    config: Config, agent: str, prompts: str | None, reward: str | None, model: str | None
) -> Resolved:
    """The environment of the program, which becomes the selected one."""
    from hermes.rl.config.base_model import BASE_MODEL
    from hermes.rl.config.resolve import with_edit
    from hermes.rl.config.reward_function import select_reward_function

    if not agent:
        raise UsageError("no agent is named", '--agent "claude -p {prompt}"')
    resolved = select_reward_function(config, None, prompts, reward, agent)
    if model is None:
        return resolved
    return with_edit(config, resolved.selection, BASE_MODEL, model, unlock=True)


def check_program(config: Config, resolved: Resolved) -> JSONObject:
    """HermesError: the rollout has no reward, with the program's own last words."""
    folder = ensure_dir(logs_dir(config.home) / "rl_training" / "check")
    stem = f"{resolved.selection.environment}_{time.time_ns() // 1000}"
    output, log = folder / f"{stem}.jsonl", folder / f"{stem}.log"
    overrides: JSONObject = {"total_steps": 1, "group_size": 1, "use_wandb": False}
    with open_policy(config, resolved.model, folder / f"{stem}_engine.log", resolved.trainer) as policy:
        begun_s = time.monotonic()
        problem = run_process_mode(resolved, policy.server, overrides, output, log, _ROLLOUT_S, START_S, 1)
        took_s = time.monotonic() - begun_s
        groups = read_groups(output)
        if not groups:
            raise HermesError(
                f"the rollout has no reward: {problem or 'its group was dropped'}", f"see {log}"
            )
        gaps = logprob_gaps(policy.url, groups[0]) if policy.is_own_engine else []
    rollout = groups[0]["overrides"][0]
    with Reader(db_path(config.home)) as reader:
        header = reader.get(rollout["trajectory_id"]).header
    facts = dict(header.metadata)
    mean_gap = statistics.fmean(gaps) if gaps else None
    verdict, holds = judge(facts, mean_gap)
    return {
        "agent": facts["agent"],
        "trajectory": header.id,
        "reward": groups[0]["scores"][0],
        "seconds": round(took_s, 1),
        "facts": facts,
        "mean_logprob_difference": mean_gap,
        "largest_logprob_difference": max(gaps, default=None),
        "verdict": verdict,
        "holds": holds,
        "log_file": str(log),
    }


def judge(facts: JSONObject, mean_gap: float | None) -> tuple[str, bool]:
    """The verdict, and whether the program can be trained."""
    if not facts["tokens_trained"]:
        return "nothing would be trained: no call offers tools or can be sampled freely", False
    if mean_gap is not None and mean_gap > _WIDEST_MEAN_GAP:
        return (
            f"log-probabilities differ by {mean_gap:.2g} on average: another context or other weights",
            False,
        )
    left_out = facts["tokens_sampled"] - facts["tokens_trained"]
    note = f"; {left_out:,} sampled tokens are left out (side calls, forced answers)" if left_out else ""
    return f"every trained token was sampled, once, in the context it is trained in{note}", True


def logprob_gaps(url: str, group: JSONObject) -> list[float]:
    """For each trained token the difference between what the sampler said and what the engine says now."""
    from hermes.training.distill import GenerateTeacher

    rows = GenerateTeacher(url).score(group["tokens"])
    return [
        abs(now - sampled)
        for row, masks, logprobs in zip(rows, group["masks"], group["inference_logprobs"], strict=True)
        for now, mask, sampled in zip(row, masks, logprobs, strict=True)
        if mask != MASKED
    ]
