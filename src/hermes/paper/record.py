"""The record of a run, as a paper needs it: metrics, evaluations, settings, seed, tokens, times, machines.

Reads only. A run of `hermes rl`, of `hermes train`, or any folder with a metrics.jsonl will do.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes.core import JSONObject
from hermes.disk.files import read_text
from hermes.errors import HermesError, UsageError
from hermes.rl.run import read_metrics
from hermes.training.monitor.machine_card import MachineCard, read_machines

PROJECT_FILE = "paper.json"
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean with its 95 % interval. `low` is None where the record has no count or deviation."""

    mean: float
    low: float | None
    high: float | None
    count: int | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    run_id: str
    folder: Path
    rows: Sequence[Mapping[str, float]]
    """One row of metrics for each step, in order."""
    evaluations: Sequence[Mapping[str, float]]
    """By the step whose weights were measured."""
    config: Mapping[str, str | float | bool | None]
    """Dotted name → value, as resolved at the start."""
    seed: int | None
    tokens: Mapping[str, int]
    started_at_ms: int | None
    ended_at_ms: int | None
    state: str | None
    machines: Sequence[MachineCard]
    """Where it was trained, one card for each change; empty in runs of earlier versions."""
    metrics_sha256: str

    @property
    def steps(self) -> int:
        return int(self.rows[-1]["step"])

    @property
    def wall_clock_s(self) -> float | None:
        """From start to end, or the sum of the steps where no start is recorded."""
        if self.started_at_ms and self.ended_at_ms:
            return (self.ended_at_ms - self.started_at_ms) / 1000
        step_times = [row["time/step_s"] for row in self.rows if "time/step_s" in row]
        return sum(step_times) if step_times else None

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of a metric; steps without it are left out."""
        return [(int(row["step"]), row[name]) for row in self.rows if name in row]

    def value(self, *names: str) -> str | float | bool | None:
        """The first of these configuration values that is recorded."""
        return next((self.config[name] for name in names if self.config.get(name) is not None), None)


def read_records(home: Path, references: Sequence[str]) -> list[RunRecord]:
    """The records of the runs; each is an id, the beginning of one, or a folder with metrics.jsonl."""
    return [read_record(_find_folder(home, reference)) for reference in references]


def read_project_records(home: Path, project: Path) -> list[RunRecord]:
    """The records that a paper's project was written from; a run that changed since is an error."""
    text = read_text(project / PROJECT_FILE)
    try:
        runs: list[JSONObject] = json.loads(text)["runs"] if text else []
        references = [(str(run["id"]), str(run["folder"]), str(run["metrics_sha256"])) for run in runs]
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{project / PROJECT_FILE} is damaged: {error}"
        raise HermesError(reason, "Write the project again.") from error
    if not references:
        raise UsageError(
            f"{project} is not a paper: it has no {PROJECT_FILE}.", "See: hermes paper new --help"
        )
    records = []
    for run_id, folder, digest in references:
        path = Path(folder) if (Path(folder) / "metrics.jsonl").is_file() else _find_folder(home, run_id)
        record = read_record(path)
        if record.metrics_sha256 != digest:
            raise HermesError(
                f"the metrics of run {run_id} changed since the paper was written.",
                "Write the project again.",
            )
        records.append(record)
    return records


def read_record(folder: Path) -> RunRecord:
    path = folder / "metrics.jsonl"
    table = [_numbers(row) for row in read_metrics(path)]
    by_step: dict[int, dict[str, float]] = {}
    for row in table:
        # An evaluation is a row of its own under the step whose weights it measured.
        if row.get("step"):
            by_step.setdefault(int(row["step"]), {}).update(row)
    if not by_step:
        raise UsageError(f"{path} has no step.", "A paper needs a run that has trained.")
    status = _read_json(folder / "status.json")
    training = _read_json(folder / "training.json")
    config = _config(folder, training)
    seed = next((config[key] for key in ("tinker.seed", "settings.seed", "seed") if key in config), None)
    return RunRecord(
        run_id=folder.name,
        folder=folder.absolute(),
        rows=[by_step[step] for step in sorted(by_step)],
        evaluations=_evaluations(table),
        config=config,
        seed=int(seed) if isinstance(seed, int | float) else None,
        tokens={name: int(count) for name, count in _read_json(folder / "tokens.json").items()},
        started_at_ms=status.get("started_at_ms"),
        ended_at_ms=status.get("ended_at_ms"),
        state=status.get("state"),
        machines=read_machines(folder),
        metrics_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def reward_interval(row: Mapping[str, float]) -> MeanInterval | None:
    """The mean reward of a step with the normal 95 % interval over its rollouts."""
    mean = row.get("reward/mean")
    if mean is None:
        return None
    deviation, count = row.get("reward/std"), row.get("data/rollouts")
    if deviation is None or not count:
        return MeanInterval(mean, None, None, None)
    half = _Z * deviation / math.sqrt(count)
    return MeanInterval(mean, mean - half, mean + half, int(count))


def _find_folder(home: Path, reference: str) -> Path:
    path = Path(reference).expanduser()
    if (path / "metrics.jsonl").is_file():
        return path
    runs = home / "runs"
    matches = [
        entry.parent for entry in runs.glob("*/metrics.jsonl") if entry.parent.name.startswith(reference)
    ]
    exact = [match for match in matches if match.name == reference]
    if reference and len(exact or matches) == 1:
        return (exact or matches)[0]
    problem = "several runs begin with" if matches and reference else "there is no run with metrics called"
    raise UsageError(
        f"{problem} '{reference}'.", "'hermes rl runs' lists them; a folder with metrics.jsonl will do."
    )


def _evaluations(table: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    by_step: dict[int, dict[str, float]] = {}
    for row in table:
        metrics = {
            name: value for name, value in row.items() if name.startswith("eval/") and name != "eval/step"
        }
        if metrics:
            step = int(row.get("eval/step", row.get("step", 0)))
            by_step[step] = {"step": float(step), **metrics}
    return [by_step[step] for step in sorted(by_step)]


def _config(folder: Path, training: JSONObject) -> dict[str, str | float | bool | None]:
    from hermes.config import yaml_file

    path = folder / "config.yaml"
    text = read_text(path)
    values: JSONObject = yaml_file.parse(text, str(path)).data if text else {}
    if not values:
        values = {"settings": training.get("settings", {}), "kind": training.get("kind")}
    return dict(flatten(values))


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str | float | bool | None]]:
    """(dotted name, scalar) pairs of nested mappings and lists."""
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in flatten(inner, f"{prefix}{key}.")]
    if isinstance(value, list):
        return [pair for index, inner in enumerate(value) for pair in flatten(inner, f"{prefix}{index}.")]
    scalar = value if isinstance(value, str | int | float | bool) or value is None else str(value)
    return [(prefix.removesuffix("."), scalar)]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _read_json(path: Path) -> JSONObject:
    text = read_text(path)
    if text is None:
        return {}
    try:
        data = json.loads(text)
    except ValueError as error:
        raise HermesError(f"{path} is damaged: {error}", "Move the run's folder aside.") from error
    return data if isinstance(data, dict) else {}
