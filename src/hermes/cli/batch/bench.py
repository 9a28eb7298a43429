"""`hermes bench`: the same tasks across models, compared."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.options import json_option, make_options, stored_variables
from hermes.errors import HermesError, UsageError
from hermes.safety.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes.batch.compare.attempts import Divergence
    from hermes.batch.compare.scores import Comparison, Contender
    from hermes.cli.batch.options import BatchOptions


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--dataset-file", required=True, metavar="FILE", help="Tasks, as for 'hermes batch'.")
@click.option("--models", required=True, metavar="A,B,C", help="Each as provider/name.")
@click.option(
    "--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Samples of each task."
)
@click.option(
    "--reward", metavar="FILE.py:FUNCTION", help="Scores each trajectory; exact match of 'expected' if unset."
)
@click.option("--diff", "with_diff", is_flag=True, help="Show where two models' trajectories first diverge.")
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a report here.")
@click.option("--run-name", help="Names the runs' folders; default: bench-DATASET.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Folder that has the runs.",
)
@json_option
@click.pass_context
@stored_variables
def bench(ctx: click.Context, /, **params: Any) -> None:
    """Run the same tasks on several models and compare them.

    Each model's run is a batch run of its own: interrupted, the same command continues it. All other flags
    of 'hermes batch' are passed on: --base-url, --toolsets, --max-turns, --concurrency, --max-cost …
    """
    ctx.exit(_Bench(ctx, make_options(BenchOptions, params)).run())


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Fields are named like the flags; `hermes bench --help` documents them."""

    dataset_file: str
    models: str
    samples: int
    reward: str | None
    with_diff: bool
    page: Path | None
    run_name: str | None
    output_dir: Path
    as_json: bool


class _Bench:
    """One call of the command."""

    def __init__(self, ctx: click.Context, options: BenchOptions) -> None:
        from hermes.batch.tasks import read_dataset

        self._ctx = ctx
        self._options = options
        self._models = _split_models(options.models)
        self._errors: dict[str, HermesError] = {}
        self._name = options.run_name or f"bench-{Path(options.dataset_file).stem}"
        max_rows = self._batch_options(self._models[0]).max_samples
        self._dataset = read_dataset(options.dataset_file, max_rows=max_rows)
        if bad_rows := self._dataset.bad:
            click.echo(f"{len(bad_rows)} rows cannot be used; each run's bad_rows.jsonl says why", err=True)
        self._reward, self._scoring = self._grader()

    def run(self) -> int:
        """0 if every sample of every model is finished, else 1."""
        from hermes.batch.compare.scores import compare_models

        options = self._options
        contenders = [self._try_model(model) for model in self._models]
        if not any(contender.attempts for contender in contenders) and self._errors:
            raise next(iter(self._errors.values()))
        comparison = compare_models(contenders, [row.key for row in self._dataset.rows])
        divergences = _divergences(contenders, comparison) if options.with_diff else []
        if options.page:
            self._write_page(options.page, comparison, divergences)
        if options.as_json:
            facts = {"run": self._name, "samples": options.samples, "scoring": self._scoring}
            facts |= {"errors": {model: error.message for model, error in self._errors.items()}}
            differences = {"divergences": [divergence.to_json() for divergence in divergences]}
            click.echo(json.dumps(facts | comparison.to_json() | differences, ensure_ascii=False))
        else:
            from hermes.cli.batch.bench_text import bench_text

            click.echo(bench_text(comparison, divergences))
        for model, error in self._errors.items():
            click.echo(f"error: {printable(model)}: {printable(error.message)}", err=True)
            click.echo(f"  fix: {printable(error.hint)}; the same command continues", err=True)
        return 1 if any(contender.failed for contender in contenders) else 0

    def _try_model(self, model: str) -> Contender:
        """Runs one model; a failure is reported at the end, beside what the others did."""
        from hermes.batch.compare.scores import Contender

        try:
            return self._run_model(model)
        except HermesError as error:
            self._errors[model] = error
            return Contender(model, [], len(self._dataset.rows) * self._options.samples)

    def _run_model(self, model: str) -> Contender:
        """Runs the tasks on one model, as a batch run."""
        from hermes.batch.compare.attempts import read_attempts
        from hermes.batch.compare.scores import Contender
        from hermes.batch.output.finalise import finalise
        from hermes.batch.progress import open_view
        from hermes.batch.spec import open_run
        from hermes.batch.workers.pool import run_batch
        from hermes.cli.batch.run import make_spec, open_workers, run_options

        options = replace(self._batch_options(model), reward=self._reward)
        folder = options.folder
        new_spec = make_spec(options, self._dataset)
        with (
            open_run(folder, new_spec, accept_changes=options.accept_changes) as spec,
            open_workers(options, folder) as workers,
        ):
            try:
                with open_view(as_json=options.as_json, title=model) as view:
                    asyncio.run(run_batch(folder, spec, self._dataset, run_options(options), view, workers))
            finally:
                summary = finalise(folder, spec, self._dataset)
        return Contender(model, read_attempts(folder), summary.failed + summary.not_run)

    def _batch_options(self, model: str) -> BatchOptions:
        """The options of the 'hermes batch' command that this model's run stands for."""
        from hermes.cli.batch.command import batch
        from hermes.cli.batch.options import BatchOptions

        flags = {
            "--dataset-file": self._options.dataset_file,
            "--run-name": f"{self._name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}",
            "--model": model,
            "--samples-per-prompt": self._options.samples,
            "--output-dir": self._options.output_dir,
        }
        arguments = [part for name, value in flags.items() for part in (name, str(value))]
        context = batch.make_context("batch", [*arguments, *self._ctx.args], parent=self._ctx.parent)
        return make_options(BatchOptions, {**context.params, "as_json": self._options.as_json})

    def _grader(self) -> tuple[str | None, str | None]:
        """The reward function's reference and its title; (None, None) if nothing can be scored."""
        rows = self._dataset.rows
        if reference := self._options.reward:
            return reference, Path(reference).name
        if any(row.expected is not None and row.reward is None for row in rows):
            from hermes.batch import exact

            return f"{exact.__file__}:exact_match", "exact match of the answer"
        return None, "the tasks' own reward functions" if any(row.reward for row in rows) else None

    def _write_page(self, path: Path, comparison: Comparison, divergences: Sequence[Divergence]) -> None:
        from hermes.batch.compare.report_html import Facts, render
        from hermes.disk.files import replacing

        facts = Facts(
            title=self._name,
            dataset=Path(self._options.dataset_file).name,
            samples=self._options.samples,
            scoring=self._scoring,
            prompts={row.key: row.prompts[0] for row in self._dataset.rows},
        )
        with replacing(path) as file:
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
