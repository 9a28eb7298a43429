"""Putting signals together: weights, clamping, gates; and the two signals that come from how the work went.

Doing nothing uses no tool badly and no turn in vain, so tool use and efficiency are never rewards of
their own: put them behind a gate (`gated`) that opens when the answer is right.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hermes.envs.rewards.result import GraderError, RewardResult


@dataclass(frozen=True, slots=True)
class Weighted:
    signal: RewardResult
    weight: float


def combine(signals: Mapping[str, Weighted], *, low: float = 0.0, high: float = 1.0) -> RewardResult:
    """The weighted sum of named signals, clamped to [low, high]; each signal's value is a part."""
    if not signals:
        raise GraderError("there is nothing to combine")
    if low >= high:
        raise GraderError(f"rewards cannot be clamped to [{low}, {high}]")
    # Checked before it is clamped, which would make a number of what is none.
    total = RewardResult(sum(entry.signal.value * entry.weight for entry in signals.values())).value
    parts = {name: entry.signal.value for name, entry in signals.items()}
    detail = "; ".join(
        f"{name}: {entry.signal.detail}" for name, entry in signals.items() if entry.signal.detail
    )
    # Rounded, because 0.6 + 0.2 + 0.2 is to be 1, not the float just below it.
    return RewardResult(min(high, max(low, round(total, 9))), parts, detail)


def gated(gate: RewardResult, result: RewardResult, *, at_least: float = 0.5) -> RewardResult:
    """The result if the gate's value reaches `at_least`; else 0, with all parts kept."""
    if gate.value >= at_least:
        return result
    return RewardResult(0.0, result.parts, gate.detail or result.detail)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call a rollout made."""

    name: str
    ok: bool
    """Whether the tool did what was asked."""


def tool_usage(uses: Sequence[ToolUse], wanted: Collection[str]) -> RewardResult:
    """The share of the wanted tools that were used with success at least once. More calls earn no more."""
    if not wanted:
        raise GraderError("tool usage is graded against no tool at all")
    used = {use.name for use in uses if use.ok}
    missing = sorted(set(wanted) - used)
    share = 1.0 - len(missing) / len(set(wanted))
    return RewardResult(
        share, {"calls": float(len(uses))}, f"unused: {', '.join(missing)}" if missing else ""
    )


def efficiency(turns: int, *, free: int, limit: int) -> RewardResult:
    """1 up to `free` turns, then down in a straight line to 0 at `limit`."""
    if not 0 < free < limit or turns < 0:
        raise GraderError(f"efficiency of {turns} turns between {free} and {limit} makes no sense")
    value = min(1.0, max(0.0, (limit - turns) / (limit - free)))
    return RewardResult(value, {"turns": float(turns)}, f"{turns} turns")
