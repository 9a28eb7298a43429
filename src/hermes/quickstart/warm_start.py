"""The warm start: right trajectories are exported, and the model is fine-tuned on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes.quickstart.act import MODEL
from hermes.quickstart.generate import GeneratedData
from hermes.quickstart.progress import StageMeter
from hermes.quickstart.recipe import QuickstartRecipe
from hermes.rl.run import read_metrics
from hermes.rl.supervise.process_group import ProcessGroup
from hermes.training.session import ProgressCallback


@dataclass(frozen=True, slots=True)
class WarmPolicy:
    weights: str
    """tinker:// path to train from."""
    sampler: str
    """tinker:// path to sample from."""


def export_right(processes: ProcessGroup, folder: Path, data: GeneratedData) -> Path:
    """The rows of the trajectories that earned the full reward, without the examples they were shown."""
    rows = folder / "sft.jsonl"
    processes.run(
        "export",
        (
            *("export", "--run", data.run_name, "--min-reward", "1"),
            *("--format", "sharegpt", "--output", str(rows), "--json"),
        ),
    )
    return rows


def warm_start(
    processes: ProcessGroup,
    recipe: QuickstartRecipe,
    engine_url: str,
    name: str,
    folder: Path,
    rows: Path,
    progress: ProgressCallback,
    seed: int = 0,
) -> WarmPolicy:
    run_folder = folder / "sft"
    meter = StageMeter("step", recipe.sft_steps, progress, set_up=True)
    result = processes.run(
        "sft",
        (
            *("train", "sft", str(rows), "--base-model", MODEL, "--service", engine_url),
            *("--name", f"{name}-sft", "--run-dir", str(run_folder), "--rank", str(recipe.rank)),
            *("--learning-rate", str(recipe.sft_rate), "--batch-size", str(recipe.sft_batch)),
            *("--max-steps", str(recipe.sft_steps), "--epochs", str(recipe.sft_steps)),
            *("--seed", str(seed), "--json"),
        ),
        step_reporter(run_folder, meter, {"train/loss": "loss"}),
    )
    return WarmPolicy(result["weights"], result["sampler"])


def step_reporter(folder: Path, meter: StageMeter, labels: Mapping[str, str]) -> Callable[[], None]:
    """Reports the steps of a trainer as they appear in its metrics, with those that have a label."""
    reported = 0

    def report_new_steps() -> None:
        nonlocal reported
        rows = [row for row in read_metrics(folder / "metrics.jsonl") if not labels.keys().isdisjoint(row)]
        for row in rows[reported:]:
            figures = (f"{label} {row[name]:.3f}" for name, label in labels.items() if name in row)
            meter.add(note="  ".join(figures))
        reported = len(rows)

    return report_new_steps
