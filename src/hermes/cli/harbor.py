"""`hermes env check harbor FOLDER` and `hermes env clean`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes.batch.options import HarborPlaceOptions
from hermes.cli.model_options import model_options
from hermes.cli.options import json_option, stored_variables

if TYPE_CHECKING:
    from hermes.envs.harbor.check import Verdict
    from hermes.envs.harbor.dataset import BadTask


@click.command("harbor")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--solutions", is_flag=True, help="Play each reference solution, and an agent that does nothing."
)
@click.option("--red-team", is_flag=True, help="Play agents that steal the reward too.")
@model_options(HarborPlaceOptions)
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1), help="Trials at one time.")
@click.option("--again", is_flag=True, help="Check tasks again that have not changed since their last check.")
@json_option
@click.pass_context
@stored_variables
def check_harbor(
    ctx: click.Context,
    /,
    options: HarborPlaceOptions,
    folder: Path,
    solutions: bool,
    red_team: bool,
    workers: int,
    again: bool,
    as_json: bool,
) -> None:
    """List which Harbor tasks of FOLDER can run here, and with --solutions whether they are sound.

    A sound task gives its reference solution 1 and an agent that does nothing 0. What is found is kept: a
    check that was interrupted goes on, and training leaves out tasks that failed. Exits with 1 if a task has
    a problem.
    """
    import asyncio

    from hermes.config.load import load
    from hermes.envs.harbor.check import check_tasks, report_json
    from hermes.envs.harbor.dataset import read_tasks
    from hermes.envs.harbor.place import PlaceOptions
    from hermes.envs.harbor.places import open_places, sweep_all

    config = load()
    task_folder = read_tasks(folder, config.environ)
    places = open_places(config.home, config.settings.sandbox, PlaceOptions.of(options), options.place)
    sweep_all(config.home, places)
    count, total = 0, len(task_folder.tasks)

    def announce(verdict: Verdict) -> None:
        nonlocal count
        count += 1
        if solutions or red_team:
            state = "ok" if verdict.sound else "problem"
            click.echo(f"{count}/{total} {verdict.task}: {state}", err=True)

    verdicts = asyncio.run(
        check_tasks(
            task_folder.tasks,
            places,
            config.home,
            solutions=solutions,
            red_team=red_team,
            workers=workers,
            again=again,
            announce=announce,
        )
    )
    if as_json:
        bad = [{"name": task.name, "reason": task.reason} for task in task_folder.bad]
        click.echo(json.dumps({**report_json(verdicts), "bad": bad}, ensure_ascii=False))
    else:
        _print_report(verdicts, task_folder.bad)
    ctx.exit(0 if all(verdict.sound for verdict in verdicts) and not task_folder.bad else 1)


def _print_report(verdicts: list[Verdict], bad: tuple[BadTask, ...]) -> None:
    from hermes.cli.tables import print_table

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:g}"

    rows = [
        (
            verdict.task,
            verdict.place or "cannot run",
            number(verdict.solution),
            number(verdict.nothing),
            number(verdict.cheats),
            verdict.problem,
        )
        for verdict in verdicts
    ]
    rows += [(task.name, "cannot run", "-", "-", "-", task.reason) for task in bad]
    print_table([("TASK", "RUNS IN", "SOLUTION", "NOTHING", "CHEATS", "PROBLEM"), *rows])
    sound = sum(verdict.sound for verdict in verdicts)
    click.echo(f"{sound} of {len(rows)} tasks have no problem")


def clean_harbor(as_json: bool) -> None:
    from hermes.config.load import load
    from hermes.envs.harbor.places import clean

    removed = clean(load().home)
    if as_json:
        click.echo(json.dumps(removed))
    else:
        click.echo(", ".join(f"{name}: {count} removed" for name, count in removed.items()))
