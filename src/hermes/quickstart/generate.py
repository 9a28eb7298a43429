"""The first data: the base model at the environment's training tasks, with examples before its eyes.

The batch path as it is: journal, worker processes, rewards, the store. The examples are ephemeral, so what is
exported has none, and a model that learns from it learns to do without.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from hermes.batch.output.finalise import finalise
from hermes.batch.spec import RunSpec, open_run
from hermes.batch.tasks import Dataset, read_dataset
from hermes.batch.workers.pool import Pool, RunOptions, RunResult
from hermes.batch.workers.process import ProcessWorkers
from hermes.core.files import atomic_write, ensure_dir
from hermes.errors import HermesError
from hermes.quickstart import reward
from hermes.quickstart.evaluate import open_env
from hermes.quickstart.progress import BatchMeter, StageMeter, Tell
from hermes.quickstart.recipe import MODEL, TOOLSETS, QuickstartRecipe, examples


@dataclass(frozen=True, slots=True)
class Generated:
    """What the batch made."""

    run_name: str
    trajectories: int
    right: int
    """Those that earned the full reward."""


def generate(recipe: QuickstartRecipe, engine_url: str, folder: Path, run_name: str, tell: Tell) -> Generated:
    """Runs the batch in `folder`/batch; the store knows its trajectories by `run_name`."""
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
    place = folder / "batch"
    open_run(place, spec, accept_changes=False)
    result = asyncio.run(_run(place, spec, dataset, recipe, tell))
    if not result.complete:
        why = "; ".join(f"{count} {cause}" for cause, count in result.failed.most_common(3)) or "stopped"
        raise HermesError(f"the batch in {place} is not complete: {why}", "hermes doctor")
    summary = finalise(place, spec, dataset)
    return Generated(run_name, summary.rows, _count_right(place))


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


async def _run(
    place: Path, spec: RunSpec, dataset: Dataset, recipe: QuickstartRecipe, tell: Tell
) -> RunResult:
    meter = BatchMeter(StageMeter("trajectories", len(dataset.rows), tell))
    options = RunOptions(num_workers=1, concurrency=recipe.at_once)
    return await Pool(place, spec, dataset, options, meter, ProcessWorkers(place)).run()


def _count_right(place: Path) -> int:
    lines = (place / "trajectories.jsonl").read_text("utf-8").splitlines()
    return sum((json.loads(line).get("reward") or 0.0) >= 1.0 for line in lines)
