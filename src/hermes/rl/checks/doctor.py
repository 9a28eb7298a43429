"""Diagnoses a run from its metrics: named causes, each with its evidence and advice. Pure.

A cause is reported only if the metrics show it. A run without one looks healthy, which does not prove that it
is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hermes.core import JSONObject
from hermes.training.monitor.proof import FOLLOWED, JUDGEMENTS, OVERTAKEN, STRIKES

RECENT = 20
"""Steps that are looked at, from the last."""
_LARGEST_STEP = 0.5
"""Nats that the probe's logprobs may move in one step, on average."""
_LEAST_ENTROPY = 0.2
"""Nats a token; a policy above it still explores, however far its entropy fell while it learned."""
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Cause:
    name: str
    evidence: str
    advice: str

    def to_json(self) -> JSONObject:
        return {"cause": self.name, "evidence": self.evidence, "advice": self.advice}


def diagnose(rows: Rows, state: str, reason: str | None, environment: str | None = None) -> list[Cause]:
    """Worst first. `rows` are the run's metrics, one a step; `environment`: a failure of its code."""
    causes = [cause for check in _CHECKS if (cause := check(rows[-RECENT:])) is not None]
    if environment is not None:
        slow = environment.startswith("grading has taken")
        causes.insert(
            0,
            Cause(
                "the grader hangs" if slow else "the environment's code fails",
                environment,
                "the environment's log has the traceback: hermes rl status shows where it is"
                if not slow
                else "look at that line: a request or a command without a time limit waits there",
            ),
        )
    if state == "failed":
        ended = next((cause for cause in causes if reason and f"{cause.name}:" in reason), None)
        note = " (this did not end the run)"
        causes = [replace(cause, evidence=cause.evidence + note) for cause in causes if cause != ended]
        advice = "hermes rl status shows its last log lines" if ended is None else ended.advice
        causes.insert(0, Cause("the run failed", reason or "no reason is recorded", advice))
    elif not rows:
        causes.append(Cause("no step yet", f"the run is {state}", "see 'hermes rl status'"))
    return causes


def _mean(rows: Rows, name: str) -> float | None:
    values = [float(row[name]) for row in rows if name in row]
    return statistics.fmean(values) if values else None


def _no_signal(rows: Rows) -> Cause | None:
    share = _mean(rows, "health/group_signal")
    if share is None or share >= 0.2:
        return None
    reward = _mean(rows, "reward/mean") or 0.0
    low = _mean(rows, "reward/min")
    hard = low is None or reward <= low + 0.05 * abs((_mean(rows, "reward/max") or 1.0) - low)
    advice = (
        "warm up with SFT (hermes train sft, then start_from), use a shaped reward or easier tasks"
        if hard
        else "use harder tasks, or a higher temperature"
    )
    return Cause(
        "no signal", f"{share:.0%} of the groups have unequal scores; mean reward {reward:.3g}", advice
    )


def _truncation(rows: Rows) -> Cause | None:
    share = _mean(rows, "health/truncated")
    if share is None or share < 0.3:
        return None
    return Cause(
        "truncation", f"{share:.0%} of the rollouts were cut off", "raise max_token_length, or ask for less"
    )


def _stale_adapter(rows: Rows) -> Cause | None:
    """A stale adapter does not follow the trainer. A gap alone is no evidence: in bf16 it is 0.05 to 0.25
    nats in runs that learn."""
    shares = [float(row["probe/followed"]) for row in rows if "probe/followed" in row]
    lagged = [not FOLLOWED <= share <= OVERTAKEN for share in shares]
    windows = [lagged[start : start + JUDGEMENTS] for start in range(len(lagged))]
    if max(map(sum, windows), default=0) < STRIKES:
        return None
    behind = [share for share, lag in zip(shares, lagged, strict=True) if lag]
    return Cause(
        "stale adapter",
        f"in {len(behind)} of {len(shares)} steps the sampler made less than {FOLLOWED:.0%} or more than "
        f"{OVERTAKEN:.0%} of the trainer's movement (last {behind[-1]:.0%})",
        "the sampler does not have the trainer's weights: restart the engine",
    )


def _off_policy(rows: Rows) -> Cause | None:
    age = _mean(rows, "health/staleness")
    if age is None or age <= 3:
        return None
    return Cause(
        "old rollouts", f"rollouts are {age:.1f} steps old on average", "lower max_batches_offpolicy"
    )


def _learning_rate(rows: Rows) -> Cause | None:
    moved = _mean(rows, "probe/moved")
    if moved is not None and moved > _LARGEST_STEP:
        return Cause(
            "learning rate too high",
            f"the policy moves by {moved:.2g} nats a step on the probe; healthy runs by about 0.1",
            "divide it by 3",
        )
    if len(rows) < 4 or "health/entropy" not in rows[0] or "health/entropy" not in rows[-1]:
        return None
    first, last = float(rows[0]["health/entropy"]), float(rows[-1]["health/entropy"])
    if first > 0.1 and last < min(0.1 * first, _LEAST_ENTROPY):
        return Cause(
            "entropy collapse",
            f"entropy fell from {first:.3g} to {last:.3g}",
            "lower the learning rate, or raise agent_temperature or kl_coefficient",
        )
    return None


def _tool_errors(rows: Rows) -> Cause | None:
    share = _mean(rows, "health/tool_errors")
    if share is None or share < 0.3:
        return None
    return Cause(
        "tool errors",
        f"{share:.0%} of the tool calls fail",
        "look at a few rollouts: hermes trajectories list",
    )


def _forbidden_paths(rows: Rows) -> Cause | None:
    share = _mean(rows, "health/forbidden_paths")
    if not share:
        return None
    return Cause(
        "forbidden paths",
        f"{share:.1%} of the rollouts name a path that no task needs: tests, a grader, answers, secrets",
        "read them: the page of the run in 'hermes web' marks them at their step; see forbidden_paths",
    )


def _constant_reward(rows: Rows) -> Cause | None:
    low, high = _mean(rows, "reward/min"), _mean(rows, "reward/max")
    if low is None or high is None or low != high or len(rows) < 3:
        return None
    return Cause(
        "reward never changes",
        f"every rollout of {len(rows)} steps was worth {low:g}",
        "the reward may fail to read the answers: hermes env check ENVIRONMENT",
    )


def _large_share(rows: Rows, name: str) -> str | None:
    """How many sequences of a batch the metric counts, in words; None if fewer than a tenth."""
    count, total = _mean(rows, name), _mean(rows, "data/sequences")
    if not count or not total or count < 0.1 * total:
        return None
    return f"{count:.1f} of {total:.1f} sequences a batch"


def _rejected(rows: Rows) -> Cause | None:
    if (refused := _large_share(rows, "data/refused")) is None:
        return None
    return Cause(
        "untrainable rollouts",
        f"{refused} are refused",
        "they are not token-exact: serve the policy with the engine",
    )


def _too_long(rows: Rows) -> Cause | None:
    if (long := _large_share(rows, "data/too_long")) is None:
        return None
    return Cause(
        "rollouts too long",
        f"{long} are longer than the trainer takes, and teach nothing",
        "raise max_token_trainer_length, or lower max_token_length",
    )


def _no_progress(rows: Rows) -> Cause | None:
    if len(rows) < RECENT or "reward/mean" not in rows[0]:
        return None
    rewards = [float(row["reward/mean"]) for row in rows if "reward/mean" in row]
    half = len(rewards) // 2
    gain = statistics.fmean(rewards[half:]) - statistics.fmean(rewards[:half])
    noise = statistics.pstdev(rewards) / max(1, half) ** 0.5
    if gain > noise or statistics.fmean(rewards[half:]) > 0.95:
        return None
    return Cause(
        "no progress",
        f"the reward changed by {gain:+.3g} over the last {len(rewards)} steps (noise {noise:.2g})",
        "raise the learning rate or the group size",
    )


_CHECKS: tuple[Callable[[Rows], Cause | None], ...] = (
    _stale_adapter,
    _constant_reward,
    _no_signal,
    _rejected,
    _too_long,
    _truncation,
    _learning_rate,
    _off_policy,
    _tool_errors,
    _forbidden_paths,
    _no_progress,
)
