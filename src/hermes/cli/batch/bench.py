"""`hermes bench`: the same tasks across models, compared."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import json_option, stored_variables
from hermes.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes.batch.compare.attempts import Divergence
    from hermes.batch.compare.scores import Comparison, Contender


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--dataset-file", required=True, metavar="FILE", help="Tasks, as for 'hermes batch'.")
@click.option("--models", required=True, metavar="A,B,C", help="Each as provider/name.")
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Per task.")
@click.option("--reward", metavar="FILE.py:FUNCTION", help="Default: exact match of 'expected'.")
@click.option("--diff", "with_diff", is_flag=True, help="Show where two models' trajectories first diverge.")
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a report here.")
@click.option("--run-name", help="Names the runs' folders; default: bench-DATASET.")
@click.option("--output-dir", type=click.Path(path_type=Path), default=Path("data"), show_default=True)
@json_option
@click.pass_context
@stored_variables
def bench(ctx: click.Context, /, **flags: Any) -> None:
    """Run the same tasks on several models and compare them.

    Each model's run is a batch run of its own: interrupted, the same command continues it. All other flags
    of 'hermes batch' are passed on: --base-url, --toolsets, --max-turns, --concurrency, --max-cost …
    """
    ctx.exit(_Bench(ctx, flags).run())


class _Bench:
    """One call of the command."""

    def __init__(self, ctx: click.Context, flags: dict[str, Any]) -> None:
        from hermes.batch.tasks import read_dataset

        self._ctx = ctx
        self._flags = flags
        self._models = _split_models(flags["models"])
        self._name = flags["run_name"] or f"bench-{Path(flags['dataset_file']).stem}"
        common = self._batch_flags(self._models[0])
        self._dataset = read_dataset(flags["dataset_file"], max_rows=common["max_samples"])
        if bad := self._dataset.bad:
            click.echo(f"{len(bad)} rows cannot be used; each run's bad_rows.jsonl says why", err=True)
        self._reward, self._scoring = self._grader()

    def run(self) -> int:
        """0 if every sample of every model is finished, else 1."""
        from hermes.batch.compare.scores import compare_models

        contenders = [self._run_model(model) for model in self._models]
        comparison = compare_models(contenders, [row.key for row in self._dataset.rows])
        divergences = _divergences(contenders, comparison) if self._flags["with_diff"] else []
        if self._flags["page"]:
            self._write_page(comparison, divergences)
        if self._flags["as_json"]:
            facts = {"run": self._name, "samples": self._flags["samples"], "scoring": self._scoring}
            found = {"divergences": [each.to_json() for each in divergences]}
            click.echo(json.dumps(facts | comparison.to_json() | found, ensure_ascii=False))
        else:
            from hermes.cli.batch.bench_text import bench_text

            click.echo(bench_text(comparison, divergences))
        return 1 if any(one.failed for one in contenders) else 0

    def _run_model(self, model: str) -> Contender:
        """The batch machinery, once for this model."""
        from hermes.batch.compare.attempts import read_attempts
        from hermes.batch.compare.scores import Contender
        from hermes.batch.output.finalise import finalise
        from hermes.batch.progress import open_view
        from hermes.batch.spec import open_run
        from hermes.batch.workers.pool import RunOptions, run_batch
        from hermes.cli.batch.run import make_spec, open_workers, run_folder

        flags = self._batch_flags(model) | {"reward": self._reward}
        folder = run_folder(flags["output_dir"], flags["run_name"])
        spec = open_run(folder, make_spec(flags, self._dataset), accept_changes=flags["accept_changes"])
        names = ("num_workers", "concurrency", "max_tries", "max_cost")
        options = RunOptions(*(flags[name] for name in names))
        with open_workers(flags, folder) as workers, open_view(as_json=flags["as_json"], title=model) as view:
            asyncio.run(run_batch(folder, spec, self._dataset, options, view, workers))
        summary = finalise(folder, spec, self._dataset)
        return Contender(model, read_attempts(folder), summary.failed + summary.not_run)

    def _batch_flags(self, model: str) -> dict[str, Any]:
        """The flags of the 'hermes batch' that this stands for."""
        from hermes.cli.batch.command import batch

        own = {
            "--dataset-file": self._flags["dataset_file"],
            "--run-name": f"{self._name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}",
            "--model": model,
            "--samples-per-prompt": self._flags["samples"],
            "--output-dir": self._flags["output_dir"],
        }
        arguments = [part for name, value in own.items() for part in (name, str(value))]
        context = batch.make_context("batch", [*arguments, *self._ctx.args], parent=self._ctx.parent)
        return {**context.params, "as_json": self._flags["as_json"]}

    def _grader(self) -> tuple[str | None, str | None]:
        """The reward function's reference, and what to call it; (None, None) if nothing can be scored."""
        rows = self._dataset.rows
        if reference := self._flags["reward"]:
            return reference, Path(reference).name
        if any(row.expected is not None and row.reward is None for row in rows):
            from hermes.batch import exact

            return f"{exact.__file__}:exact_match", "exact match of the answer"
        return None, "the tasks' own reward functions" if any(row.reward for row in rows) else None

    def _write_page(self, comparison: Comparison, divergences: Sequence[Divergence]) -> None:
        from hermes.batch.compare.report_html import Facts, render
        from hermes.core.files import replacing

        facts = Facts(
            title=self._name,
            dataset=Path(self._flags["dataset_file"]).name,
            samples=self._flags["samples"],
            scoring=self._scoring,
            prompts={row.key: row.prompts[0] for row in self._dataset.rows},
        )
        with replacing(self._flags["page"]) as file:
            file.write(render(facts, comparison, divergences))


def _divergences(contenders: Sequence[Contender], comparison: Comparison) -> list[Divergence]:
    from hermes.batch.compare.attempts import find_divergences
    from hermes.config.load import load
    from hermes.config.paths import db_path
    from hermes.store import Reader

    with Reader(db_path(load().home)) as reader:
        return list(find_divergences(reader, contenders, graded=comparison.graded))


def _split_models(text: str) -> list[str]:
    models = [name.strip() for name in text.split(",")]
    repeated = {model for model in models if models.count(model) > 1}
    if "" in models or repeated:
        problem = f"names {min(repeated)} twice" if repeated else "has an empty name"
        raise UsageError(f"--models {problem}", "write them as provider/name,provider/name")
    return models
