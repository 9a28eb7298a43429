"""One rollout of a program, and the proof: what it called, what came back, what would be trained."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from hermes.config.paths import db_path, logs_dir
from hermes.core.sequence import MASKED
from hermes.disk.files import ensure_dir
from hermes.envs.programs.record import RolloutCounts, RolloutFacts
from hermes.errors import HermesError, UsageError
from hermes.rl.checks.inference_test import read_groups, run_process_mode
from hermes.rl.checks.preflight import START_S, open_policy
from hermes.store import Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes.config.load import Config
    from hermes.core import JSONObject
    from hermes.rl.config.resolve import Resolved
    from hermes.training.monitor.logprob_proof import CheckedSequence

_ROLLOUT_S = 900.0


def select_program(
    config: Config,
    agent: str | None,
    prompts: str | None,
    reward: str | None,
    model: str | None,
    train_model: str | None = None,
) -> Resolved:
    """The environment of the program, which becomes the selected one."""
    from hermes.rl.config.base_model import BASE_MODEL
    from hermes.rl.config.resolve import with_edit
    from hermes.rl.config.reward_function import select_reward_function

    if not agent:
        raise UsageError("no agent is named", '--agent "claude -p {prompt}"')
    resolved = select_reward_function(config, None, prompts, reward, agent, train_model)
    if model is None:
        return resolved
    return with_edit(config, resolved.selection, BASE_MODEL, model, unlock=True)


def check_program(config: Config, resolved: Resolved) -> JSONObject:
    """HermesError: the rollout has no reward, with the program's own last words."""
    folder = ensure_dir(logs_dir(config.home) / "rl_training" / "check")
    stem = f"{resolved.selection.environment}_{time.time_ns() // 1000}"
    output, log = folder / f"{stem}.jsonl", folder / f"{stem}.log"
    overrides: JSONObject = {"total_steps": 1, "group_size": 1, "use_wandb": False, "max_failed_groups": 1}
    with open_policy(config, resolved, folder / f"{stem}_engine.log") as policy:
        begun_s = time.monotonic()
        problem = run_process_mode(resolved, policy.server, overrides, output, log, _ROLLOUT_S, START_S, 1)
        took_s = time.monotonic() - begun_s
        groups = read_groups(output)
        if not groups:
            raise HermesError(
                f"the rollout has no reward: {problem or 'its group was dropped'}", f"see {log}"
            )
        sampled = str(policy.server.settings["model_name"])
        checked = score_again(policy.url, sampled, groups[0]) if policy.is_own_engine else []
    rollout = groups[0]["overrides"][0]
    with Reader(db_path(config.home)) as reader:
        header = reader.get(rollout["trajectory_id"]).header
    facts = RolloutFacts.from_json(header.metadata)
    gaps = [
        abs(stated - expected.middle)
        for sequence in checked
        for stated, expected in zip(sequence.stated, sequence.expected, strict=True)
    ]
    verdict, holds = judge(facts.counts, checked)
    return {
        "agent": header.metadata["agent"],
        "trajectory": header.id,
        "reward": groups[0]["scores"][0],
        "seconds": round(took_s, 1),
        "facts": facts.to_json(),
        "mean_logprob_difference": statistics.fmean(gaps) if gaps else None,
        "largest_logprob_difference": max(gaps, default=None),
        "verdict": verdict,
        "holds": holds,
        "log_file": str(log),
    }


def judge(counts: RolloutCounts, checked: Sequence[CheckedSequence]) -> tuple[str, bool]:
    """The verdict, and whether the program can be trained; rounding is no fault, as in a run's proof."""
    from hermes.training.monitor.logprob_proof import LogprobSpread, rounding_explains

    if not counts.tokens_trained:
        return "nothing would be trained: no call offers tools or can be sampled freely", False
    measured = LogprobSpread.of(checked)
    if not rounding_explains(measured):
        return (
            f"log-probabilities differ by more than rounding explains (median {measured.spread:.2g})",
            False,
        )
    left_out = counts.tokens_sampled - counts.tokens_trained
    reasons = f"{counts.tokens_side:,} of calls beside the task, {counts.tokens_forced:,} of forced answers"
    note = f"; {left_out:,} sampled tokens are left out ({reasons})" if left_out else ""
    return f"every trained token was sampled, once, in the context it is trained in{note}", True


def score_again(url: str, model: str, group: JSONObject) -> list[CheckedSequence]:
    """For each sequence what the sampler said of its trained tokens, and what the engine says now."""
    from hermes.training.data.sampling_distribution import LogprobBounds
    from hermes.training.distill import GenerateTeacher
    from hermes.training.monitor.logprob_proof import CheckedSequence

    rows = GenerateTeacher(url, model=model).score(group["tokens"])
    checked = []
    for row, masks, logprobs in zip(rows, group["masks"], group["inference_logprobs"], strict=True):
        trained = [index for index, mask in enumerate(masks) if mask != MASKED]
        expected = [LogprobBounds(row[index], row[index]) for index in trained]
        checked.append(CheckedSequence([logprobs[index] for index in trained], expected))
    return checked
