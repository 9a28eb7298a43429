"""The warm start: right trajectories are compressed and exported, and the model is fine-tuned on them."""

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

_BUDGET_TOKENS = 512
"""Tokens above which the compressor shortens a generated trajectory."""


@dataclass(frozen=True, slots=True)
class WarmPolicy:
    weights: str
    """tinker:// path to train from."""
    sampler: str
    """tinker:// path to sample from."""
    losses: tuple[float, ...]
    """Step by step."""


def export_right(
    processes: ProcessGroup, folder: Path, data: GeneratedData, progress: ProgressCallback
) -> Path:
    """The rows of the trajectories that earned the full reward, without the examples they were shown."""
    right, rows = f"run={data.run_name} reward>=1", folder / "sft.jsonl"
    processes.run(
        "compress",
        (
            *("compress", "--input", right, "--output", str(folder / "compressed.jsonl")),
            *("--target-max-tokens", str(_BUDGET_TOKENS), "--json"),
        ),
    )
    summary = processes.run(
        "export",
        (
            *("export", "--run", data.run_name, "--min-reward", "1", "--compressed"),
            *("--format", "sharegpt", "--output", str(rows), "--json"),
        ),
    )
    progress(f"   {summary['rows']} rows in {rows}")
    return rows


def warm_start(
    processes: ProcessGroup,
    recipe: QuickstartRecipe,
    engine_url: str,
    name: str,
    folder: Path,
    rows: Path,
    progress: ProgressCallback,
) -> WarmPolicy:
    run_folder = folder / "sft"
    meter = StageMeter("step", recipe.sft_steps, progress, set_up=True)
    result = processes.run(
        "sft",
        (
            *("train", "sft", str(rows), "--base-model", MODEL, "--service", engine_url),
            *("--name", f"{name}-sft", "--run-dir", str(run_folder), "--rank", str(recipe.rank)),
            *("--learning-rate", str(recipe.sft_rate), "--batch-size", str(recipe.sft_batch)),
            *("--max-steps", str(recipe.sft_steps), "--epochs", str(recipe.sft_steps), "--json"),
        ),
        step_reporter(run_folder, meter, {"train/loss": "loss"}),
    )
    losses = tuple(row["train/loss"] for row in read_metrics(run_folder / "metrics.jsonl"))
    return WarmPolicy(result["weights"], result["sampler"], losses)


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
