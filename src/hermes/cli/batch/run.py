"""Runs `hermes batch`: from options to a run, with its display, its signals and its report."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import click

from hermes.batch.journal import read_states
from hermes.batch.options import BatchOptions
from hermes.batch.output.finalise import DatasetSummary, finalise
from hermes.batch.overview import overview
from hermes.batch.plan import read_progress, unfinished_samples
from hermes.batch.progress import open_view
from hermes.batch.reward import check_reward
from hermes.batch.spec import RunSpec, open_run
from hermes.batch.start import make_spec, with_grader
from hermes.batch.tasks import Dataset, read_dataset
from hermes.batch.workers.base import WorkerSource
from hermes.batch.workers.pool import Pool, RunOptions, RunResult
from hermes.batch.workers.process import ProcessWorkers
from hermes.cli.batch.status_text import continued_text, failure_lines
from hermes.config.environment import export_stored
from hermes.config.load import Config, load
from hermes.core.names import counted
from hermes.errors import UsageError
from hermes.models.open import choose_model
from hermes.rl.weights.open import find_policy
from hermes.rl.weights.serve import served
from hermes.safety.text import printable
from hermes.store import Filter

_BAD_ROWS_SHOWN = 5
_HARBOR_TOOLSETS = "terminal,file"


def run(options: BatchOptions, early: Popen[bytes] | None = None, *, as_json: bool) -> int:
    """0 if every sample is finished, 1 if one failed, none could be scored, or the run was stopped.

    `early` is a worker process that waits for its job (batch.workers.launch).
    """
    export_stored()
    source, folder = options.dataset, options.folder
    if options.resume and not (folder / "run.json").exists():
        raise UsageError(f"there is no run in {folder} to resume", "leave out --resume to start it")
    worker_context = open_workers(options, folder, early)
    dataset = read_tasks(options, source)
    _report_bad_rows(dataset)
    options = with_grader(options, dataset)
    if (options.reward or "").endswith(":text_match"):
        click.echo(
            "math-verify is not installed: answers are scored as texts and numbers only (text_match); "
            "pip install 'hermes-research[envs]'",
            err=True,
        )
    check_rewards(options.reward, dataset)
    config, new_spec = spec_of(options, dataset)
    end: tuple[RunResult, DatasetSummary] | None = None
    try:
        with (
            open_run(folder, new_spec, accept_changes=options.accept_changes) as spec,
            served_policy(config, spec, dataset, options) as policy_url,
            worker_context as workers,  # before the signal handlers: Ray sets its own
            open_view(as_json=as_json, title=options.name) as view,
        ):
            pool = Pool(folder, spec, dataset, run_options(options, policy_url), view, workers)
            try:
                asyncio.run(_run_with_signals(pool))
            finally:  # the dataset is written at every end, a fatal one included
                end = pool.result, finalise(folder, spec, dataset)
    finally:  # while the workers are open, what is printed may go nowhere (cluster.connect)
        if end is not None:
            _report(folder, *end, as_json=as_json)
    assert end is not None
    result, summary = end
    if config.settings.rating.raters:
        from hermes.cli.rating.auto import rate_new

        asyncio.run(rate_new(config, Filter(run_id=new_spec.name)))
    return 0 if result.complete and not _never_scored(summary) else 1


def read_tasks(options: BatchOptions, source: str) -> Dataset:
    """UsageError or ConfigError: there is no task that can be used."""
    if options.harbor is None:
        return read_dataset(source, max_rows=options.max_samples)
    for flag, is_given in (
        ("--dataset-file", options.dataset_file),
        ("--reward", options.reward),
        ("--sandbox", options.sandbox),
    ):
        if is_given:
            hint = "its tasks have prompts, tests and sandboxes of their own"
            raise UsageError(f"--harbor and {flag} exclude each other", hint)
    from hermes.envs.harbor.rows import read_rows

    dataset = read_rows(options.harbor, load(), options)
    return replace(dataset, rows=dataset.rows[: options.max_samples])


def check_rewards(reward: str | None, dataset: Dataset) -> None:
    """UsageError: a reward function of the run or of a row cannot be used; found before anything is paid."""
    for reference in {reward, *(row.reward for row in dataset.rows)}:
        if reference is not None:
            check_reward(reference)


def _never_scored(summary: DatasetSummary) -> bool:
    """Whether the reward function failed on every sample that it was called for."""
    rewards = summary.statistics["reward"]
    return rewards is not None and rewards["count"] == 0 and rewards["grader_failures"] > 0


def run_options(options: BatchOptions, policy_url: str | None) -> RunOptions:
    concurrency = options.concurrency
    if options.harbor is not None and "concurrency" not in options.model_fields_set:
        concurrency = 2 * (os.cpu_count() or 1)  # each sample is a sandbox with its task's resources
    return RunOptions(options.num_workers, concurrency, options.max_tries, options.max_cost, policy_url)


@contextmanager
def served_policy(
    config: Config, spec: RunSpec, dataset: Dataset, options: BatchOptions
) -> Iterator[str | None]:
    """Where the run's model answers if it is a policy: at its run, else at an engine for the block.

    None: it is another model, or nothing is left to ask it.
    """
    policy = find_policy(config, spec.model) if spec.base_url is None else None
    progress = read_progress(read_states(options.folder / "journal"))
    if policy is None or not unfinished_samples(dataset.rows, spec.samples_per_prompt, progress):
        yield None
    elif policy.url is not None:
        yield policy.url
    else:
        if options.ray_address not in (None, "local"):
            raise UsageError(
                f"the nodes of {options.ray_address} cannot reach an engine on this machine's loopback",
                f"hermes policy serve {policy.name} where they can, then --base-url ADDRESS",
            )
        with served(config, policy, _note) as url:
            yield url


def _note(text: str) -> None:
    click.echo(printable(text), err=True)


def open_workers(
    options: BatchOptions, folder: Path, early: Popen[bytes] | None = None
) -> AbstractContextManager[WorkerSource]:
    """The workers that --executor selects; called before any of the user's code is loaded."""
    if options.uses_ray:
        from hermes.batch.workers.ray import open_ray_workers
        from hermes.cluster.connect import prepare

        address = None if options.ray_address == "local" else options.ray_address
        if options.harbor is not None and address is not None:
            raise UsageError("--harbor and --ray exclude each other", "its tasks are files of this machine")
        prepare(address, insecure=options.ray_insecure)
        return open_ray_workers(folder, address, options.num_workers)
    if options.ray_insecure:
        raise UsageError("--ray-insecure needs a Ray cluster", "add --ray HOST:PORT, or --ray local")
    return nullcontext(ProcessWorkers(folder, early))


def spec_of(options: BatchOptions, dataset: Dataset) -> tuple[Config, RunSpec]:
    """The configuration, and the specification with the policy that a name like `policy` stands for now."""
    config = load(options.settings())
    if options.harbor is not None and options.toolsets is None and options.distribution is None:
        options = options.model_copy(update={"toolsets": _HARBOR_TOOLSETS})
    base_url = options.base_url
    model = asyncio.run(choose_model(config, options.model, base_url)) or config.settings.model
    policy = find_policy(config, model, _note) if base_url is None else None
    if policy is not None:
        model, config = policy.name, replace(config, texts=policy.texts)
        if policy.base_model == model:
            policy = None
        elif options.toolsets is None and options.distribution is None and policy.toolsets is not None:
            options = options.model_copy(update={"toolsets": ",".join(policy.toolsets) or "none"})
    return config, make_spec(
        options, dataset, config, model, base_url, _note, policy.base_model if policy else None
    )


async def _run_with_signals(pool: Pool) -> None:
    """The first Ctrl-C drains, the second stops; SIGTERM stops."""
    loop = asyncio.get_running_loop()
    interrupted = False

    def on_interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            pool.stop()
            return
        interrupted = True
        click.echo("\nfinishing the samples in flight; Ctrl-C again stops at once", err=True)
        pool.drain()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    loop.add_signal_handler(signal.SIGTERM, pool.stop)
    await pool.run()


def _report_bad_rows(dataset: Dataset) -> None:
    for row in dataset.bad[:_BAD_ROWS_SHOWN]:
        click.echo(printable(str(row)), err=True)
    if len(dataset.bad) > _BAD_ROWS_SHOWN:
        click.echo(
            f"… {len(dataset.bad) - _BAD_ROWS_SHOWN} more bad rows, listed in bad_rows.jsonl", err=True
        )


def _report(folder: Path, result: RunResult, summary: DatasetSummary, *, as_json: bool) -> None:
    if as_json:
        facts = {
            "folder": str(folder),
            "planned": result.total,
            "finished": result.finished,
            "failed": dict(result.failed),
            "stopped": result.stopped,
            "worker_deaths": result.worker_deaths,
            "rows": summary.rows,
            "filtered": summary.filtered,
            "bad_rows": summary.bad_rows,
        }
        click.echo(json.dumps(facts))
        return
    click.echo(f"{counted(summary.rows, 'rows')} in {folder / 'trajectories.jsonl'}")
    if summary.filtered:
        click.echo(f"  excluded by filters: {summary.filtered} (filtered.jsonl)")
    state = overview(folder)
    if state["continued"]:
        click.echo(f"  continued: {continued_text(state)}")
    if state["scored"]:
        click.echo(f"  mean reward {state['mean_reward']:.3f} over {state['scored']} scored samples")
    for name, text in (
        *failure_lines(state["failures"], "failed:", "the same command runs them again"),
        *failure_lines(state["grader_failures"], "unscored:", "the reward function failed"),
    ):
        click.echo(f"  {name} {text}" if name else f"  {text}")
    for note in summary.notes:
        click.echo(f"  {printable(note)}")
    if result.stopped:
        click.echo(
            f"  stopped with {result.total - result.finished} samples unfinished; the same command continues"
        )
