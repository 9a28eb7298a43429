"""The outcome of a quickstart, and its report: tables for the terminal, the reward curve, two next steps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes.core import JSONObject
from hermes.core.clock import duration
from hermes.core.stats import Interval
from hermes.disk.files import atomic_write
from hermes.quickstart import chart
from hermes.quickstart.act import Stage, text_table


@dataclass(frozen=True, slots=True)
class Point:
    """One step of reinforcement learning."""

    step: int
    reward: Interval
    """Mean over all rollouts of the step, before its update."""


@dataclass(frozen=True, slots=True)
class QuickstartOutcome:
    run_name: str
    """The run of `hermes rl`, and the batch that made the warm start's data."""
    device: str
    generated: int
    right: int
    """Generated trajectories with the full reward; the warm start's data."""
    evaluations: tuple[tuple[str, Interval], ...]
    """Success on held-out tasks, greedy: the base model, after the warm start, at the end."""
    curve: tuple[Point, ...]
    stages: tuple[Stage, ...]
    policy: str
    """The name of the trained policy."""
    folder: Path

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def to_json(self) -> JSONObject:
        data = asdict(self)
        data |= {"evaluations": dict(data["evaluations"]), "folder": str(self.folder)}
        return {**data, "seconds": self.seconds}


def write(outcome: QuickstartOutcome) -> None:
    """reward.svg and report.json in the quickstart's folder."""
    curve = [(point.step, point.reward) for point in outcome.curve]
    atomic_write(outcome.folder / "reward.svg", chart.svg(curve))
    atomic_write(outcome.folder / "report.json", json.dumps(outcome.to_json(), indent=1) + "\n")


def text(outcome: QuickstartOutcome) -> str:
    """The report for the terminal."""
    success: list[tuple[str, ...]] = [("held-out sums, greedy", "right", "95 % interval")]
    for name, rate in outcome.evaluations:
        success.append((name, f"{rate.mean:.0%}", f"{rate.low:.0%} to {rate.high:.0%}"))
    times = ", ".join(f"{stage.name} {duration(stage.seconds)}" for stage in outcome.stages)
    return "\n\n".join(
        (
            text_table(success),
            f"{duration(outcome.seconds)} on {outcome.device}: {times}\n"
            f"run {outcome.run_name}, policy {outcome.policy}; curve {outcome.folder / 'reward.svg'}",
            "Next:\n" + "\n".join(f"  {command}" for command in next_commands(outcome)),
        )
    )


def next_commands(outcome: QuickstartOutcome) -> tuple[str, str]:
    """Talk to the policy, and look at the run."""
    return f'hermes --model policy:{outcome.policy} -q "What is 384 * 29?"', "hermes web"
