"""Combining reward signals: weights, clamping, gates; and two signals from the course of a rollout.

A rollout that does nothing wastes no turn, so tool use and efficiency are never rewards on their own: put
them behind a gate (`gated`) that opens when the response is right.
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
    # Checked for NaN before clamping, because min and max would turn NaN into a number.
    total = RewardResult(sum(entry.signal.value * entry.weight for entry in signals.values())).value
    parts = {name: entry.signal.value for name, entry in signals.items()}
    detail = "; ".join(
        f"{name}: {entry.signal.detail}" for name, entry in signals.items() if entry.signal.detail
    )
    # Rounded, because 0.6 + 0.2 + 0.2 must be 1, not the float just below it.
    return RewardResult(min(high, max(low, round(total, 9))), parts, detail)


def gated(gate: RewardResult, result: RewardResult, *, at_least: float = 0.5) -> RewardResult:
    """The result if the gate's value reaches `at_least`; else 0, with the parts of the result."""
    if gate.value >= at_least:
        return result
    return RewardResult(0.0, result.parts, gate.detail or result.detail)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One tool call of a rollout."""

    name: str
    ok: bool
    """Whether the tool succeeded."""


def tool_usage(uses: Sequence[ToolUse], required: Collection[str]) -> RewardResult:
    """The share of the required tools that were used successfully at least once. More calls earn no more."""
    if not required:
        raise GraderError("tool usage needs at least one required tool")
    used = {use.name for use in uses if use.ok}
    missing = sorted(set(required) - used)
    share = 1.0 - len(missing) / len(set(required))
    return RewardResult(
        share, {"calls": float(len(uses))}, f"unused: {', '.join(missing)}" if missing else ""
    )


def efficiency(turns: int, *, free: int, limit: int) -> RewardResult:
    """1 up to `free` turns, then linearly down to 0 at `limit`."""
    if not 0 < free < limit or turns < 0:
        raise GraderError(f"efficiency needs 0 < free < limit: free {free}, limit {limit}, turns {turns}")
    value = min(1.0, max(0.0, (limit - turns) / (limit - free)))
    return RewardResult(value, {"turns": float(turns)}, f"{turns} turns")
