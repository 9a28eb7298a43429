"""The outcome of a quickstart as data: for the table, the report and `--json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from hermes.core import JSONObject
from hermes.quickstart.act import Stage
from hermes.quickstart.evaluate import PolicyEvaluation


@dataclass(frozen=True, slots=True)
class Point:
    """One step of reinforcement learning."""

    step: int
    reward: float
    """Mean over all rollouts of the step, before its update."""
    signal: float
    """Share of groups whose rollouts have different rewards."""


@dataclass(frozen=True, slots=True)
class QuickstartOutcome:
    run_name: str
    device: str
    generated: int
    right: int
    """Generated trajectories with the full reward; the warm start's data."""
    policies: tuple[tuple[str, PolicyEvaluation], ...]
    """Base, after SFT, after GRPO: the success of each on the held-out tasks."""
    losses: tuple[float, ...]
    """The losses of the warm start, step by step."""
    curve: tuple[Point, ...]
    stages: tuple[Stage, ...]
    weights: str
    """tinker:// path of the trained weights."""
    folder: Path

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    def to_json(self) -> JSONObject:
        data = asdict(self)
        data |= {"policies": dict(data["policies"]), "folder": str(self.folder)}
        return {**data, "seconds": self.seconds}
