"""Carrying out `hermes batch`: from flags to a run, with its display, its signals and its ending."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from subprocess import Popen
from typing import Any

import click
from click.core import ParameterSource

from hermes.batch.output.finalise import DatasetSummary, finalise
from hermes.batch.progress import open_view
from hermes.batch.reward import load_reward
from hermes.batch.spec import Filters, RunSpec, open_run
from hermes.batch.tasks import Dataset, read_dataset
from hermes.batch.workers.base import WorkerSource
from hermes.batch.workers.pool import Pool, RunOptions, RunResult, Watcher
from hermes.batch.workers.process import ProcessWorkers
from hermes.cli.batch.command import refuse_key, settings_of
from hermes.config.environment import export_stored
from hermes.config.load import Config, load
from hermes.config.providers import resolve_model
from hermes.errors import UsageError
from hermes.models.prices import price_of
from hermes.rl.run import named_run
from hermes.safety.text import printable
from hermes.tools import distributions
from hermes.tools.registry import check_toolset, unusable

_BAD_ROWS_SHOWN = 5
_NO_TOOLSETS = ("none",)


def run(flags: dict[str, Any], early: Popen[bytes] | None = None) -> int:
    """0 if everything owed is finished, 1 if something failed or was stopped.

    `early` is a worker process that waits for its job (batch.launch).
    """
    refuse_key(flags)
    export_stored()
    for name in ("dataset_file", "run_name"):
        if not flags[name]:
            raise UsageError(f"--{name.replace('_', '-')} is missing", "see 'hermes batch --help'")
    folder = run_folder(flags["output_dir"], flags["run_name"])
    if flags["resume"] and not (folder / "run.json").exists():
        raise UsageError(f"there is no run in {folder} to resume", "leave out --resume to start it")
    opening = open_workers(flags, folder, early)
    dataset = read_dataset(flags["dataset_file"], max_rows=flags["max_samples"])
    _report_bad_rows(dataset)
    for reference in {flags["reward"], *(row.reward for row in dataset.rows)} - {None}:
        load_reward(reference)  # a mistake in it is found before anything is paid for
    spec = open_run(folder, make_spec(flags, dataset), accept_changes=flags["accept_changes"])
    options = RunOptions(flags["num_workers"], flags["concurrency"], flags["max_tries"], flags["max_cost"])
    with (
        opening as workers,  # before the signal handlers: Ray sets its own
        open_view(as_json=flags["as_json"], title=flags["run_name"]) as view,
    ):
        result = asyncio.run(_with_signals(folder, spec, dataset, options, view, workers))
    summary = finalise(folder, spec, dataset)
    _report(folder, result, summary, as_json=flags["as_json"])
    return 0 if result.complete else 1


def run_folder(output_dir: Path, run_name: str) -> Path:
    if run_name in (".", "..") or "/" in run_name or "\\" in run_name or not run_name.isprintable():
        raise UsageError(f"'{run_name}' cannot name a run", "use letters, digits, '-', '_' and '.'")
    return output_dir / run_name


def open_workers(
    flags: dict[str, Any], folder: Path, early: Popen[bytes] | None = None
) -> AbstractContextManager[WorkerSource]:
    """As --executor and its companions say; called before anything of the user's is loaded."""
    if flags["executor"] == "ray":
        from hermes.batch.workers.ray import open_ray_workers
        from hermes.batch.workers.ray_cluster import prepare

        prepare(flags["ray_address"], insecure=flags["ray_insecure"])
        return open_ray_workers(folder, flags["ray_address"], flags["num_workers"])
    if flags["ray_address"] or flags["ray_insecure"]:
        raise UsageError("--ray-address and --ray-insecure need --executor ray", "add --executor ray")
    return nullcontext(ProcessWorkers(folder, early))


def make_spec(flags: dict[str, Any], dataset: Dataset) -> RunSpec:
    settings = settings_of(flags)
    config = load(settings)
    model, base_url = flags["model"] or config.settings.model, flags["base_url"]
    if (policy := named_run(config.home, model)) is not None:
        from hermes.rl.config.resolve import POLICY
        from hermes.rl.weights.serve import endpoint

        model, base_url = POLICY, endpoint(policy)
    target = resolve_model(config.settings, config.environ, model, base_url)
    routing = _routing(flags)
    if routing:
        settings[f"providers.{target.provider}.base_url"] = target.base_url
        settings[f"providers.{target.provider}.extra_body"] = {"provider": routing}
    if flags["max_cost"] is not None and price_of(config.settings, target.name) is None:
        raise UsageError(
            f"--max-cost cannot be kept: the price of {target.name} is unknown",
            f'state it in config.yaml, in US dollars per million tokens: prices: {{"{target.name}": '
            "{input: …, output: …}}",
        )
    if flags["distribution"] and flags["toolsets"]:
        raise UsageError("--distribution and --toolsets exclude each other", "choose one")
    toolsets = _toolsets(flags["toolsets"])
    return RunSpec(
        name=flags["run_name"],
        dataset=flags["dataset_file"],
        dataset_digest=dataset.digest,
        model=model,
        base_url=base_url,
        distribution=flags["distribution"],
        toolsets=toolsets,
        missing_toolsets=_missing_toolsets(config, flags, toolsets),
        samples_per_prompt=flags["samples_per_prompt"],
        seed=flags["seed"],
        settings=settings,
        system_prompt=flags["ephemeral_system_prompt"],
        prefill=_prefill(flags["prefill_messages_file"]),
        reward=flags["reward"],
        filters=Filters(
            require_reasoning=flags["require_reasoning"],
            drop_unknown_tools=flags["drop_unknown_tools"],
            only_completed=flags["only_completed"],
            min_turns=flags["keep_min_turns"],
            max_turns=flags["keep_max_turns"],
            min_reward=flags["min_reward"],
            dedupe=flags["dedupe"],
        ),
    )


def _missing_toolsets(
    config: Config, flags: dict[str, Any], toolsets: tuple[str, ...] | None
) -> tuple[str, ...]:
    """What was asked for and cannot be used here; UsageError unless --allow-missing-toolsets accepts it."""
    source, names = "--toolsets", toolsets if toolsets and toolsets != _NO_TOOLSETS else ()
    if name := flags["distribution"]:
        percents = distributions.resolve(name, config.settings.distributions)
        names = tuple(toolset for toolset, percent in percents.items() if percent)
        source = f"the distribution '{name}'"
    reasons = unusable(names, config.settings, config.environ)
    if "memory" in names:
        reasons["memory"] = "it needs a person who sees what is remembered; use it in chat"
    if not reasons:
        return ()
    listing = "; ".join(f"{toolset} ({why})" for toolset, why in reasons.items())
    if len(reasons) == len(names):
        raise UsageError(f"no toolset of {source} can be used here: {listing}", "configure one of them")
    if not flags["allow_missing_toolsets"]:
        raise UsageError(
            f"{source} names toolsets that cannot be used here: {listing}",
            "configure them, or add --allow-missing-toolsets to go on without them",
        )
    click.echo(printable(f"going on without {listing}"), err=True)
    return tuple(reasons)


def merge_config_file(ctx: click.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """Values from --config, under what the command line says itself."""
    path: Path | None = flags["config_file"]
    if path is None:
        return flags
    from hermes.config import yaml_file

    given = yaml_file.parse(path.read_text("utf-8"), str(path)).data
    merged = dict(flags)
    by_name = {parameter.name: parameter for parameter in ctx.command.params}
    for name, value in given.items():
        parameter = by_name.get(name.replace("-", "_"))
        if parameter is None or parameter.name is None:
            raise UsageError(f"{path}: unknown key '{name}'", "the keys are the flags of 'hermes batch'")
        if ctx.get_parameter_source(parameter.name) is not ParameterSource.COMMANDLINE:
            merged[parameter.name] = parameter.type_cast_value(ctx, value)
    return merged


async def _with_signals(
    folder: Path, spec: RunSpec, dataset: Dataset, options: RunOptions, view: Watcher, workers: WorkerSource
) -> RunResult:
    """Ctrl-C once drains, twice stops; SIGTERM stops."""
    pool = Pool(folder, spec, dataset, options, view, workers)
    loop = asyncio.get_running_loop()
    interrupted = False

    def on_interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            pool.stop()
            return
        interrupted = True
        click.echo("\nfinishing what is in flight; Ctrl-C again stops at once", err=True)
        pool.drain()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    loop.add_signal_handler(signal.SIGTERM, pool.stop)
    return await pool.run()


def _toolsets(wish: str | None) -> tuple[str, ...] | None:
    if wish is None:
        return None
    names = [name.strip() for name in wish.split(",") if name.strip()]
    return _NO_TOOLSETS if names == ["none"] else tuple(check_toolset(name) for name in names)


def _routing(flags: dict[str, Any]) -> dict[str, Any]:
    lists = {"only": "providers_allowed", "ignore": "providers_ignored", "order": "providers_order"}
    routing: dict[str, Any] = {
        key: [name.strip() for name in flags[flag].split(",")] for key, flag in lists.items() if flags[flag]
    }
    if flags["provider_sort"]:
        routing["sort"] = flags["provider_sort"]
    return routing


def _prefill(path: Path | None) -> tuple[dict[str, Any], ...]:
    if path is None:
        return ()
    try:
        messages = json.loads(path.read_text("utf-8"))
        return tuple({"role": str(each["role"]), "content": str(each["content"])} for each in messages)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is not a list of messages: {error!r}", 'write [{"role": "user", "content": "…"}, …]'
        ) from error


def _report_bad_rows(dataset: Dataset) -> None:
    for bad in dataset.bad[:_BAD_ROWS_SHOWN]:
        click.echo(f"bad row on line {bad.line}: {printable(bad.reason)}", err=True)
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
        click.echo(f"  kept aside by filters: {summary.filtered} (filtered.jsonl)")
    for cause, count in result.failed.most_common():
        click.echo(f"  failed: {count} ({printable(cause)}); the same command tries them again")
    for note in summary.notes:
        click.echo(f"  {printable(note)}")
    if result.stopped:
        click.echo(f"  stopped with {result.total - result.finished} owed; the same command continues")
