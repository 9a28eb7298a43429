"""`hermes bench`: the same tasks across models, compared."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.batch.compare.attempts import Divergence
from hermes.batch.compare.scores import Attempt, Comparison, ModelPair, Score
from hermes.batch.options import BatchOptions, RunFolder
from hermes.cli.model_options import model_options, parse_model
from hermes.cli.options import json_option, stored_variables
from hermes.cli.render import money, one_line, render_message
from hermes.cli.tables import columns
from hermes.config.option import command_words, option
from hermes.core import Message
from hermes.errors import HermesError, UsageError
from hermes.safety.text import printable

if TYPE_CHECKING:
    from hermes.batch.compare.scores import Contender

_MESSAGE_CHARS = 160


class BenchOptions(RunFolder):
    dataset_file: str | None = option(None, "Tasks, as for 'hermes batch'.", metavar="FILE")
    harbor: Path | None = option(
        None, "Folder of Harbor tasks, instead of a dataset.", path="folder", metavar="FOLDER"
    )
    models: str = option(..., "Each as provider/name.", "--model", former=("--models",), metavar="A,B,C")
    samples: int = option(1, "Samples of each task.", "--samples-per-prompt", former=("--samples",), ge=1)
    reward: str | None = option(
        None, "Scores each trajectory; exact match of 'expected' if unset.", metavar="FILE.py:FUNCTION"
    )
    with_diff: bool = option(False, "Show where two models' trajectories first diverge.", "--diff")
    run_name: str | None = option(None, "Names the runs' folders; default: bench-DATASET.")


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@model_options(BenchOptions)
@json_option
@click.pass_context
@stored_variables
def bench(ctx: click.Context, /, options: BenchOptions, as_json: bool) -> None:
    """Run the same tasks on several models and compare them.

    Each model's run is a batch run of its own: interrupted, the same command continues it. All other flags
    of 'hermes batch' are passed on: --base-url, --toolsets, --max-turns, --concurrency, --max-cost …
    """
    ctx.exit(_Bench(ctx, options, as_json).run())


class _Bench:
    """One call of the command."""

    def __init__(self, ctx: click.Context, options: BenchOptions, as_json: bool) -> None:
        from hermes.cli.batch.run import read_tasks

        self._ctx = ctx
        self._options = options
        self._as_json = as_json
        self._models = _split_models(options.models)
        self._errors: dict[str, HermesError] = {}
        source = options.harbor or options.dataset_file or ""
        self._name = options.run_name or f"bench-{Path(source).absolute().stem}"
        first = self._batch_options(self._models[0])
        self._dataset = read_tasks(first, first.dataset)
        if bad_rows := self._dataset.bad:
            click.echo(f"{len(bad_rows)} rows cannot be used; each run's bad_rows.jsonl says why", err=True)
        self._reward, self._scoring = self._grader()

    def run(self) -> int:
        """0 if every sample of every model is finished, else 1."""
        from hermes.batch.compare.scores import compare_models
        from hermes.cli.batch.run import check_rewards

        check_rewards(self._reward, self._dataset)
        options = self._options
        contenders = [self._try_model(model) for model in self._models]
        if not any(contender.attempts for contender in contenders) and self._errors:
            raise next(iter(self._errors.values()))
        comparison = compare_models(contenders, [row.key for row in self._dataset.rows])
        divergences = _divergences(contenders, comparison) if options.with_diff else []
        if self._as_json:
            facts = {"run": self._name, "samples": options.samples, "scoring": self._scoring}
            facts |= {"errors": {model: error.message for model, error in self._errors.items()}}
            differences = {"divergences": [divergence.to_json() for divergence in divergences]}
            click.echo(json.dumps(facts | comparison.to_json() | differences, ensure_ascii=False))
        else:
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
        from hermes.cli.batch.run import open_workers, run_options, served_policy, spec_of

        options = self._batch_options(model).model_copy(update={"reward": self._reward})
        folder = options.folder
        config, new_spec = spec_of(options, self._dataset)
        with (
            open_run(folder, new_spec, accept_changes=options.accept_changes) as spec,
            served_policy(config, spec, self._dataset, options) as policy_url,
            open_workers(options, folder) as workers,
        ):
            chosen = run_options(options, policy_url)
            try:
                with open_view(as_json=self._as_json, title=model) as view:
                    asyncio.run(run_batch(folder, spec, self._dataset, chosen, view, workers))
            finally:
                summary = finalise(folder, spec, self._dataset)
        return Contender(model, read_attempts(folder), summary.failed + summary.not_run)

    def _batch_options(self, model: str) -> BatchOptions:
        """The options of the 'hermes batch' command that this model's run stands for."""
        from hermes.cli.batch.command import batch

        words = command_words(
            BatchOptions,
            {
                "dataset_file": self._options.dataset_file,
                "harbor": self._options.harbor,
                "reward": self._options.reward,
                "run_name": f"{self._name}-{re.sub(r'[^A-Za-z0-9._-]+', '-', model)}",
                "model": model,
                "samples_per_prompt": self._options.samples,
                "output_dir": self._options.output_dir,
            },
        )
        context = batch.make_context("batch", [*words, *self._ctx.args], parent=self._ctx.parent)
        return parse_model(BatchOptions, context)

    def _grader(self) -> tuple[str | None, str | None]:
        """The reward function's reference and its title; (None, None) if nothing can be scored."""
        rows = self._dataset.rows
        if self._options.harbor is not None:
            return None, "the tasks' own tests"
        if reference := self._options.reward:
            return reference, Path(reference).name
        if any(row.expected is not None and row.reward is None for row in rows):
            from hermes.batch import exact

            name = exact.grader_name()
            without = "" if name == "exact_match" else ", without math-verify"
            return f"{exact.__file__}:{name}", f"exact match of the answer{without}"
        return None, "the tasks' own reward functions" if any(row.reward for row in rows) else None


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


def bench_text(comparison: Comparison, divergences: Sequence[Divergence]) -> str:
    parts = [columns([_heading(comparison), *(_score_row(score, comparison) for score in comparison.scores)])]
    if comparison.pairs:
        parts.append("\n".join(_pair_line(pair, comparison.binary) for pair in comparison.pairs))
    if divergences:
        parts.append("\n".join(line for divergence in divergences for line in _divergence_lines(divergence)))
    return "\n\n".join(parts)


def _heading(comparison: Comparison) -> Sequence[str]:
    name = "pass rate" if comparison.binary else "mean reward"
    rest = "samples,failed,unscored,ended,cost,call p50,call p90,tokens,turns"
    return ("model", name, "95 % interval", *rest.split(","))


def _score_row(score: Score, comparison: Comparison) -> Sequence[str]:
    """Empty columns are dropped, so a comparison without scores has none."""
    ends = (score.interval.low, score.interval.high) if score.interval else ()
    low_high = [score_text(end, comparison.binary) for end in ends]
    ended = ", ".join(f"{outcome} {count}" for outcome, count in score.outcomes.items())
    return (
        printable(score.model),
        score_text(score.score, comparison.binary) if comparison.graded else "",
        " to ".join(low_high),
        str(score.samples),
        str(score.failed or ""),
        str(score.ungraded or ""),
        ended,
        money(score.cost_usd),
        _ms(score.latency_p50_ms),
        _ms(score.latency_p90_ms),
        "" if score.mean_tokens is None else f"{score.mean_tokens:.0f}",
        "" if score.mean_turns is None else f"{score.mean_turns:.1f}",
    )


def _pair_line(pair: ModelPair, binary: bool) -> str:
    between = f"{printable(pair.left)} against {printable(pair.right)}"
    if pair.difference is None:
        return f"{between}: no task that both were scored on"
    scale, unit = (100, " points") if binary else (1, "")
    ends = (pair.interval.low, pair.interval.high) if pair.interval else ()
    interval = " to ".join(f"{scale * end:+.3g}" for end in ends)
    return (
        f"{between}: {pair.wins} won, {pair.losses} lost, {pair.ties} tied;"
        f" difference {scale * pair.difference:+.3g}{unit}{f' ({interval})' if interval else ''},"
        f" p = {pair.p_value:.3f}"
    )


def _divergence_lines(divergence: Divergence) -> Iterator[str]:
    shared = divergence.difference.shared
    yield f"task {printable(divergence.key)}: after {shared} equal message{'' if shared == 1 else 's'}"
    sides = (
        (divergence.left_model, divergence.left, divergence.difference.left),
        (divergence.right_model, divergence.right, divergence.difference.right),
    )
    for model, attempt, messages in sides:
        yield f"  {printable(model)} ({_end(attempt)}, {attempt.trajectory_id}): {_first_message(messages)}"


def _first_message(messages: Sequence[Message]) -> str:
    if not messages:
        return "nothing more"
    return f"{messages[0].role.value}: {one_line(render_message(messages[0]), _MESSAGE_CHARS)}"


def _end(attempt: Attempt) -> str:
    return attempt.outcome if attempt.reward is None else f"reward {attempt.reward:g}"


def score_text(value: float | None, binary: bool) -> str:
    """A pass rate in percent, any other score as a number."""
    if value is None:
        return "–"
    return f"{value:.1%}" if binary else f"{value:.3g}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} ms"
