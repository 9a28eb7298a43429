"""Runs `hermes batch`: from options to a run, with its display, its signals and its report."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import click

from hermes.batch.output.finalise import DatasetSummary, finalise
from hermes.batch.overview import overview
from hermes.batch.progress import open_view
from hermes.batch.reward import load_reward
from hermes.batch.spec import Filters, RunSpec, load_spec, open_run
from hermes.batch.tasks import Dataset, read_dataset
from hermes.batch.workers.base import WorkerSource
from hermes.batch.workers.pool import Pool, RunOptions, RunResult
from hermes.batch.workers.process import ProcessWorkers
from hermes.cli.batch.options import BatchOptions
from hermes.cli.batch.status_text import continued_text, failure_lines
from hermes.config.environment import export_stored
from hermes.config.load import Config, load
from hermes.config.providers import resolve_model
from hermes.errors import UsageError
from hermes.models.served import choose_model
from hermes.models.usage import price_of
from hermes.rl.run import named_run
from hermes.safety.text import printable
from hermes.tools import distributions
from hermes.tools.registry import check_toolset, unusable_toolsets
from hermes.training.policy_registry import named_policy

_BAD_ROWS_SHOWN = 5
_NO_TOOLSETS = ("none",)


def run(options: BatchOptions, early: Popen[bytes] | None = None) -> int:
    """0 if every sample is finished, 1 if one failed, none could be scored, or the run was stopped.

    `early` is a worker process that waits for its job (batch.workers.launch).
    """
    export_stored()
    folder = options.folder
    if options.resume and not (folder / "run.json").exists():
        raise UsageError(f"there is no run in {folder} to resume", "leave out --resume to start it")
    worker_context = open_workers(options, folder, early)
    dataset = read_dataset(options.dataset_file, max_rows=options.max_samples)
    _report_bad_rows(dataset)
    options = _with_grader(options, dataset)
    for reference in {options.reward, *(row.reward for row in dataset.rows)}:
        if reference is not None:
            load_reward(reference)  # a mistake in it is found before anything is paid for
    new_spec = make_spec(options, dataset)
    with (
        open_run(folder, new_spec, accept_changes=options.accept_changes) as spec,
        worker_context as workers,  # before the signal handlers: Ray sets its own
        ExitStack() as display,
    ):
        view = display.enter_context(open_view(as_json=options.as_json, title=options.run_name))
        pool = Pool(folder, spec, dataset, run_options(options), view, workers)
        try:
            asyncio.run(_run_with_signals(pool))
        finally:  # the dataset is written at every end, a fatal one included
            display.close()
            summary = finalise(folder, spec, dataset)
            _report(folder, pool.result, summary, as_json=options.as_json)
    return 0 if pool.result.complete and not _never_scored(summary) else 1


def _never_scored(summary: DatasetSummary) -> bool:
    """Whether the reward function failed on every sample that it was called for."""
    rewards = summary.statistics["reward"]
    return rewards is not None and rewards["count"] == 0 and rewards["grader_failures"] > 0


def _with_grader(options: BatchOptions, dataset: Dataset) -> BatchOptions:
    """Where every row says what is expected, answers are scored by exact match unless a function is named.

    A run that was started without scoring continues without it.
    """
    unscored = [row for row in dataset.rows if row.reward is None]
    started = (options.folder / "run.json").exists() and load_spec(options.folder).reward is None
    if options.reward is not None or started or not unscored:
        return options
    if any(row.expected is None for row in unscored):
        return options
    from hermes.batch import exact

    return replace(options, reward=f"{exact.__file__}:{exact.exact_match.__name__}")


def run_options(options: BatchOptions) -> RunOptions:
    return RunOptions(options.num_workers, options.concurrency, options.max_tries, options.max_cost)


def open_workers(
    options: BatchOptions, folder: Path, early: Popen[bytes] | None = None
) -> AbstractContextManager[WorkerSource]:
    """The workers that --executor selects; called before any of the user's code is loaded."""
    if options.executor == "ray":
        from hermes.batch.workers.ray import open_ray_workers
        from hermes.cluster.connect import prepare

        prepare(options.ray_address, insecure=options.ray_insecure)
        return open_ray_workers(folder, options.ray_address, options.num_workers)
    if options.ray_address or options.ray_insecure:
        raise UsageError("--ray-address and --ray-insecure need --executor ray", "add --executor ray")
    return nullcontext(ProcessWorkers(folder, early))


def make_spec(options: BatchOptions, dataset: Dataset) -> RunSpec:
    settings = options.settings()
    config = load(settings)
    base_url = options.base_url
    model = asyncio.run(choose_model(config, options.model, base_url)) or config.settings.model
    if base_url is None and (promoted := named_policy(config.home, model)) is not None:
        from hermes.policies.open import policy_endpoint

        model, base_url = policy_endpoint(config, promoted)
    if (policy := named_run(config.home, model)) is not None:
        from hermes.rl.config.resolve import POLICY
        from hermes.rl.weights.serve import endpoint

        model, base_url = POLICY, endpoint(policy)
    target = resolve_model(config.settings, config.environ, model, base_url)
    routing = options.provider_routing()
    if routing:
        settings[f"providers.{target.provider}.base_url"] = target.base_url
        settings[f"providers.{target.provider}.extra_body"] = {"provider": routing}
    if options.max_cost is not None and price_of(config.settings, target.name) is None:
        raise UsageError(
            f"--max-cost cannot be kept: the price of {target.name} is unknown",
            f'state it in config.yaml, in US dollars per million tokens: prices: {{"{target.name}": '
            "{input: …, output: …}}",
        )
    if options.distribution and options.toolsets:
        raise UsageError("--distribution and --toolsets exclude each other", "choose one")
    toolsets = _parse_toolsets(options.toolsets)
    return RunSpec(
        name=options.run_name,
        dataset=options.dataset_file,
        dataset_digest=dataset.digest,
        model=model,
        base_url=base_url,
        distribution=options.distribution,
        toolsets=toolsets,
        missing_toolsets=_missing_toolsets(config, options, toolsets),
        samples_per_prompt=options.samples_per_prompt,
        seed=options.seed,
        settings=settings,
        system_prompt=options.ephemeral_system_prompt,
        prefill=_read_prefill(options.prefill_messages_file),
        reward=options.reward,
        filters=Filters(
            require_reasoning=options.require_reasoning,
            drop_unknown_tools=options.drop_unknown_tools,
            only_completed=options.only_completed,
            min_turns=options.keep_min_turns,
            max_turns=options.keep_max_turns,
            min_reward=options.min_reward,
            dedupe=options.dedupe,
        ),
    )


def _missing_toolsets(
    config: Config, options: BatchOptions, toolsets: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Requested toolsets that cannot be used here; UsageError unless --allow-missing-toolsets is set."""
    source, names = "--toolsets", toolsets if toolsets and toolsets != _NO_TOOLSETS else ()
    if name := options.distribution:
        percents = distributions.resolve(name, config.settings.distributions)
        names = tuple(toolset for toolset, percent in percents.items() if percent)
        source = f"the distribution '{name}'"
    reasons = unusable_toolsets(names, config.settings, config.environ)
    if "memory" in names:
        reasons["memory"] = "it needs a person who sees what is remembered; use it in chat"
    if not reasons:
        return ()
    listing = "; ".join(f"{toolset} ({reason})" for toolset, reason in reasons.items())
    if len(reasons) == len(names):
        raise UsageError(f"no toolset of {source} can be used here: {listing}", "configure one of them")
    if not options.allow_missing_toolsets:
        raise UsageError(
            f"{source} names toolsets that cannot be used here: {listing}",
            "configure them, or add --allow-missing-toolsets to omit them",
        )
    click.echo(printable(f"going on without {listing}"), err=True)
    return tuple(reasons)


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


def _parse_toolsets(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return _NO_TOOLSETS if names == ["none"] else tuple(check_toolset(name) for name in names)


def _read_prefill(path: Path | None) -> tuple[dict[str, Any], ...]:
    if path is None:
        return ()
    try:
        messages = json.loads(path.read_text("utf-8"))
        return tuple(
            {"role": str(message["role"]), "content": str(message["content"])} for message in messages
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is not a list of messages: {error!r}", 'write [{"role": "user", "content": "…"}, …]'
        ) from error


def _report_bad_rows(dataset: Dataset) -> None:
    for row in dataset.bad[:_BAD_ROWS_SHOWN]:
        click.echo(f"bad row on line {row.line}: {printable(row.reason)}", err=True)
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
    click.echo(f"{summary.rows} rows in {folder / 'trajectories.jsonl'}")
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
