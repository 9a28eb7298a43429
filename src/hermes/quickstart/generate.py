"""Generates the SFT data: the base model solves the environment's training tasks with examples in its prompt.

It uses the ordinary batch path: journal, worker processes, rewards, the store. The examples are ephemeral, so
the exported rows do not contain them, and a model that is trained on the rows works without them.

The warm start exports the right trajectories and fine-tunes the model on them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes.batch.output.finalise import finalise
from hermes.batch.spec import RunSpec, open_run
from hermes.batch.tasks import Dataset, read_dataset
from hermes.batch.workers.pool import Pool, RunOptions
from hermes.batch.workers.process import ProcessWorkers
from hermes.disk.files import atomic_write, ensure_dir
from hermes.errors import HermesError
from hermes.quickstart import reward
from hermes.quickstart.act import MODEL
from hermes.quickstart.evaluate import open_env
from hermes.quickstart.progress import BatchMeter, StageMeter
from hermes.quickstart.recipe import TOOLSETS, QuickstartRecipe, examples
from hermes.rl.run import read_metrics
from hermes.rl.supervise.process_group import ProcessGroup
from hermes.training.session import ProgressCallback


@dataclass(frozen=True, slots=True)
class GeneratedData:
    """The result of the batch."""

    run_name: str
    trajectories: int
    right: int
    """Those that earned the full reward."""


def generate(
    recipe: QuickstartRecipe, engine_url: str, folder: Path, run_name: str, progress: ProgressCallback
) -> GeneratedData:
    """Runs the batch in `folder`/batch; its trajectories are stored under `run_name`."""
    tasks = folder / "tasks.jsonl"
    system_prompt = asyncio.run(_write_tasks(recipe, engine_url, tasks))
    dataset = read_dataset(str(tasks))
    spec = RunSpec(
        name=run_name,
        dataset=str(tasks),
        dataset_digest=dataset.digest,
        model=MODEL,
        base_url=f"{engine_url}/v1",
        toolsets=TOOLSETS,
        settings={
            "system_prompt": system_prompt,
            "limits.max_turns": 4,
            "sampling.temperature": 0.0,
            "sampling.max_tokens": recipe.max_tokens,
        },
        prefill=tuple(message.to_json() for message in examples()),
        reward=f"{reward.__file__}:{reward.exact_number.__name__}",
    )
    batch_folder = folder / "batch"
    meter = StageMeter("trajectories", len(dataset.rows), progress)
    rows = run_batch(batch_folder, spec, dataset, recipe.at_once, meter)
    return GeneratedData(run_name, rows, _count_right(batch_folder))


def run_batch(folder: Path, spec: RunSpec, dataset: Dataset, at_once: int, meter: StageMeter) -> int:
    """Runs a batch with one worker; the number of its rows. HermesError: it is not complete."""
    options = RunOptions(num_workers=1, concurrency=at_once)
    with open_run(folder, spec, accept_changes=False) as spec:
        pool = Pool(folder, spec, dataset, options, BatchMeter(meter), ProcessWorkers(folder))
        result = asyncio.run(pool.run())
        summary = finalise(folder, spec, dataset)
    if not result.complete:
        reasons = "; ".join(f"{count} {cause}" for cause, count in result.failed.most_common(3)) or "stopped"
        raise HermesError(f"the batch in {folder} is not complete: {reasons}", "hermes doctor")
    return summary.rows


async def _write_tasks(recipe: QuickstartRecipe, engine_url: str, path: Path) -> str:
    """The environment's training tasks as a dataset; its system prompt."""
    env = open_env(recipe, engine_url)
    await env.setup()
    items = [await env.get_next_item() for _ in range(recipe.tasks)]
    rows = [{"prompt": env.format_prompt(item), "expected": item.answer} for item in items]
    ensure_dir(path.parent)
    atomic_write(path, "".join(json.dumps(row) + "\n" for row in rows))
    assert env.config.system_prompt is not None, "the calculator has one"
    return env.config.system_prompt


def _count_right(batch_folder: Path) -> int:
    lines = (batch_folder / "trajectories.jsonl").read_text("utf-8").splitlines()
    return sum((json.loads(line).get("reward") or 0.0) >= 1.0 for line in lines)


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
