"""The outcome of a quickstart as data: for the table, the report and `--json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from hermes.core import JSONObject
from hermes.core.stats import Interval
from hermes.quickstart.act import Stage


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
