"""Runs `hermes train`: progress, signals and the printed result around the trainers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, TypeVar

import click

from hermes.cli.filters import FilterOptions
from hermes.cli.terminal.progress import ProgressLines
from hermes.config.load import load
from hermes.training.checkpoints import StateFile
from hermes.training.launch import Launch, check_service, choose_service, run_spec, train_rl
from hermes.training.options import OfflineOptions, RewardOptions, RlhfOptions, RlOptions
from hermes.training.session import STOPPED, TrainingRunSpec, TrainResult

if TYPE_CHECKING:
    from hermes.data.export.select import TrajectorySelection
    from hermes.training.preference.reward_model import RewardModelSpec

Options = TypeVar("Options", bound=OfflineOptions)
Result = TypeVar("Result")


def run_on_rows(
    kind: str,
    doing: str,
    train: Callable[[Launch, Options, TrajectorySelection | None], TrainResult],
    options: Options,
    filters: FilterOptions,
    *,
    as_json: bool,
) -> None:
    """Trains on the rows of files, or of the stored trajectories that match."""
    run, result = _train_on_rows(kind, doing, train, options, filters, as_json)
    _print_result(run, result, as_json=as_json)


def run_reward(options: RewardOptions, filters: FilterOptions, *, as_json: bool) -> None:
    from hermes.training.preference.launch import train_reward

    run, spec = _train_on_rows("reward", "reading the ratings", train_reward, options, filters, as_json)
    if spec is not None:
        _print_reward_model(run, spec, as_json=as_json)


def _train_on_rows(
    kind: str,
    doing: str,
    train: Callable[[Launch, Options, TrajectorySelection | None], Result],
    options: Options,
    filters: FilterOptions,
    as_json: bool,
) -> tuple[TrainingRunSpec, Result]:
    config = load()
    run = run_spec(config, options, kind)
    check_service(run)
    with ProgressLines(to_stderr=as_json) as progress:
        progress.wait_for(doing)
        selection = None if options.files else filters.selection(only_completed=not options.everything)
        if selection is not None:
            selection = replace(selection, machine_ratings=options.machine_ratings)
        return run, train(Launch(config, run, progress, _stop_on_signals(run)), options, selection)


def run_rl(options: RlOptions, *, as_json: bool) -> None:
    from hermes.rl.supervise.engine_process import run_engine

    config = load()
    options = choose_service(options, config.environ)
    run = run_spec(config, options, "rl")
    with ProgressLines(to_stderr=as_json) as progress, run_engine(config, run, options, progress):
        result = train_rl(Launch(config, run, progress, _stop_on_signals(run)), options)
    _print_result(run, result, as_json=as_json)


def run_rlhf(options: RlhfOptions, filters: FilterOptions, *, as_json: bool) -> None:
    from hermes.rl.rlhf import rlhf_run_spec, train_rlhf
    from hermes.rl.supervise.engine_process import run_engine

    config = load()
    options = choose_service(options, config.environ)
    run = rlhf_run_spec(config, options)
    stop = _stop_on_signals(run)
    with ProgressLines(to_stderr=as_json) as progress, run_engine(config, run, options, progress):
        selection = None if options.prompts else filters.selection(only_completed=False)
        result, failure = train_rlhf(Launch(config, run, progress, stop), options, selection)
    _print_result(run, result, as_json=as_json)
    if failure is not None:
        raise failure


def _stop_on_signals(run: TrainingRunSpec) -> threading.Event:
    """The first signal ends the run after the current step, with everything saved; a second one, at once,
    with the processes that the run has launched.

    Both messages go to the file descriptor itself: a handler may run in the middle of a write of Python's.
    """
    from hermes.rl.process import terminate_launched

    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        if not stop.is_set():
            stop.set()
            os.write(2, b"\nfinishing this step and saving it; Ctrl-C again stops at once\n")
            return
        os.write(2, f"\nstopped at once; {_saved_text(run)}\n".encode())
        terminate_launched()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def _saved_text(run: TrainingRunSpec) -> str:
    state = StateFile(run.folder).state()
    if state is None or not state.kept:
        return "no checkpoint was made, and the same command starts again"
    return f"the checkpoint of step {state.kept[-1].step} is kept; to go on: {_same_command(run)}"


def _same_command(run: TrainingRunSpec) -> str:
    return f"the same command with --name {run.id}"


def _print_result(run: TrainingRunSpec, result: TrainResult, *, as_json: bool) -> None:
    if as_json:
        best = result.best._asdict() if result.best else None
        facts = {"run_id": run.id, "run_dir": str(run.folder), **asdict(result), "best": best}
        click.echo(json.dumps(facts))
        return
    click.echo(f"{result.reason} at step {result.step}")
    click.echo(f"weights  {result.weights}")
    click.echo(f"sampler  {result.sampler}")
    if result.best:
        click.echo(f"best     step {result.best.step} ({result.best.value:.4f})  {result.best.sampler}")
    click.echo(f"metrics  {run.folder / 'metrics.jsonl'}")
    if result.reason == STOPPED:
        click.echo(f"to go on {_same_command(run)}")


def _print_reward_model(run: TrainingRunSpec, spec: RewardModelSpec, *, as_json: bool) -> None:
    from hermes.training.preference.launch import RELIABILITY_PLOT

    if as_json:
        click.echo(json.dumps({"run_id": run.id, "run_dir": str(run.folder), **asdict(spec)}))
        return
    for sampler in spec.members:
        click.echo(f"sampler  {sampler}")
    if spec.held_out is not None:
        report = spec.held_out
        click.echo(
            f"held out {report['pairs']} pairs: accuracy {report['accuracy']:.1%}, ECE {report['ece']:.3f}, "
            f"longer answer preferred {report['longer_preferred']:.0%} "
            f"(by people {report['longer_chosen']:.0%})"
        )
        click.echo(f"plot     {run.folder / RELIABILITY_PLOT}")
    click.echo(f"model    {run.folder / 'reward_model.json'}")
    click.echo(f"next     hermes reward serve {run.id}")
