"""`hermes rl`: choose an environment, configure it, start a run, watch it, stop it, use its weights.

An argument of several words is a task for the agent, which has the same commands as `rl_*` tools; a single
unknown word is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import WholeSummaries, json_option
from hermes.cli.rl.agent import agent
from hermes.cli.rl.checks import (
    EditOptions,
    EnvironmentOptions,
    TaskOptions,
    TrainedModelOptions,
    UnlockOptions,
    alerts,
    assignments,
    check,
    check_signal,
    doctor,
    edited,
    may_set,
    parse_value,
    preflight,
    print_differences,
    test,
)
from hermes.cli.rl.plan import plan
from hermes.cli.rl.sweep import sweep
from hermes.cli.rl.weights import serve, weights
from hermes.config.option import option

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSON
    from hermes.rl.config.resolve import Resolved

_run_argument = click.argument("run_id", metavar="[RUN]", required=False)


_FORMER = {
    "diff": ("results",),
    "list": ("agent", "--list-environments"),
    "runs": ("status", "--all"),
    "select": ("config", "--env"),
}
"""Former command → its words now."""


class TaskGroup(WholeSummaries):
    """A group that passes a task, which is not one of its commands, to the agent."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in _FORMER:
            args = [*_FORMER[args[0]], *args[1:]]
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            if not args[0].startswith("-") and " " not in args[0].strip():
                from hermes.core.names import did_you_mean, nearest

                fix = did_you_mean(
                    nearest(args[0], self.commands), 'a task has several words, in quotes: "…".'
                )
                raise click.UsageError(f"no such command '{args[0]}'; {fix}", ctx)
            args = ["agent", *args]
        return super().parse_args(ctx, args)


@click.group(cls=TaskGroup)
def rl() -> None:
    """Train by reinforcement: environments, runs, weights. `hermes rl "TASK"` lets the agent do it."""


rl.add_command(agent)
for _command in (check, test, preflight, doctor, alerts, plan, sweep, weights, serve):
    rl.add_command(_command)


def _config(flags: Mapping[str, JSON] | None = None) -> Config:
    from hermes.config.environment import export_stored
    from hermes.config.load import load

    export_stored()
    return load(flags)


def _print(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


@rl.command()
@click.argument("field", required=False)
@click.argument("value", required=False)
@model_options(EnvironmentOptions, UnlockOptions)
@json_option
def config(
    selected: EnvironmentOptions,
    locks: UnlockOptions,
    /,
    field: str | None,
    value: str | None,
    as_json: bool,
) -> None:
    """Show the fields of the selected environment, or set one: FIELD VALUE.

    Locks are for the agent: a person may set every field that a run does not set itself.

    \b
    hermes rl config total_steps 200
    hermes rl config learning_rate 1e-5
    """
    from hermes.errors import UsageError
    from hermes.rl.config.resolve import current_selection, edit, resolve
    from hermes.rl.config.resolve import select as choose
    from hermes.rl.render import fields_text

    settings = _config()
    if selected.environment is not None:
        choose(settings, selected.environment)
    if field is None:
        resolved = resolve(settings, current_selection(settings.home))
    elif value is None:
        raise UsageError(f"no value for {field}", f"hermes rl config {field} VALUE")
    else:
        resolved = edit(settings, field, parse_value(value), unlock=may_set(field, locks.unlock))
    click.echo(fields_text(resolved, as_json))


class StartOptions(UnlockOptions):
    environments: tuple[str, ...] = option(
        (),
        "Environment to train on, by name or file. Repeat it for several; weights are shares of a batch.",
        "--env",
        metavar="NAME[:WEIGHT]",
    )
    toolsets: str | None = option(
        None, "Toolsets that the agent is offered; 'none' for no tools.", metavar="A,B"
    )
    config_file: Path | None = option(
        None, "YAML file with the sections env, openai and tinker.", "--config", path="file"
    )
    service: str | None = option(
        None, "Tinker service that trains, instead of an engine on this machine.", metavar="URL|managed"
    )
    name: str | None = option(
        None, "Name of the run; default: the environment and the day, as in calculator-1118."
    )
    note: str = option("", "What the run is for, in your words; kept with it.")


@rl.command()
@model_options(StartOptions, EditOptions, TaskOptions, TrainedModelOptions)
@click.option(
    "--preflight/--no-preflight",
    default=None,
    help="Sample for a minute first, and do not start if there is nothing to learn from; on at a terminal.",
)
@json_option
def start(
    options: StartOptions,
    changes: EditOptions,
    task: TaskOptions,
    trained: TrainedModelOptions,
    preflight: bool | None,
    as_json: bool,
) -> None:
    """Start a run. It continues without this terminal.

    \b
    hermes rl start --env calculator
    hermes rl start --env calculator:2 --env format:1
    hermes rl start --prompts tasks.jsonl --reward my_reward.py:reward
    hermes rl start --agent "pi -p {prompt}" \\
      --prompts tasks.jsonl --reward run-tests.sh
    """
    from hermes.cli.question import has_person
    from hermes.rl.config.mixture import parse_weighted, resolve_mixture
    from hermes.rl.start import start as start_run

    settings = _config({"rl.service": options.service} if options.service else {})
    names = [parse_weighted(reference) for reference in options.environments]
    environment = names[0].name if names else None
    if task.prompts or task.reward or task.agent:
        from hermes.rl.config.reward_function import select_reward_function

        select_reward_function(settings, environment, task.prompts, task.reward, task.agent, task.train_model)
        environment = None
    several = len(names) > 1
    edits = () if several else changes.edits
    resolved = _resolve_selected(settings, environment, options, edits, trained.model)
    mixed = resolve_mixture(settings, names, resolved, assignments(changes.edits)) if several else []
    resolved = mixed[0].resolved if mixed else resolved
    if preflight or (preflight is None and has_person() and not as_json):
        for checked in [entry.resolved for entry in mixed] or [resolved]:
            check_signal(settings, checked)
    run = start_run(settings, resolved, mixed=mixed, name=options.name, note=options.note)
    if as_json:
        _print(
            {"run_id": run.run_id, "status": run.status().state.value, "config_path": str(run.config_path)}
        )
    else:
        click.echo(f"run {run.run_id} is starting; 'hermes rl status' shows its progress")


def _resolve_selected(
    settings: Config,
    environment: str | None,
    options: StartOptions,
    edits: tuple[str, ...],
    model: str | None,
) -> Resolved:
    from hermes.rl.config.base_model import BASE_MODEL
    from hermes.rl.config.resolve import current_selection, resolve, save, with_edit, with_run_file
    from hermes.rl.config.resolve import select as choose

    if environment is not None:
        choose(settings, environment)
    resolved = resolve(settings, current_selection(settings.home))
    if options.config_file is not None:
        resolved = with_run_file(settings, resolved.selection, options.config_file)
        save(settings.home, resolved.selection)
    if (toolsets := options.toolsets) is not None:
        names = [] if toolsets == "none" else [name.strip() for name in toolsets.split(",")]
        resolved = with_edit(settings, resolved.selection, "env.enabled_toolsets", names, unlock=True)
    resolved = edited(settings, resolved, edits, unlock=options.unlock)
    if model is not None:  # who types the name of a model allows it
        resolved = with_edit(settings, resolved.selection, BASE_MODEL, model, unlock=True)
    return resolved


@rl.command()
@_run_argument
@click.option(
    "--set", "edits", multiple=True, metavar="FIELD=VALUE", help="Change a field from now on; repeatable."
)
@json_option
def resume(run_id: str | None, edits: tuple[str, ...], as_json: bool) -> None:
    """Continue a run from its last checkpoint. Without RUN: the newest one.

    The run was stopped, failed or completed.

    With --set total_steps=N a completed run makes more steps.
    """
    from hermes.rl.resume import resume as resume_run
    from hermes.rl.run import find_run

    settings = _config()
    run = find_run(settings.home, run_id)
    step = resume_run(settings, run, dict(assignments(edits)))
    if as_json:
        _print({"run_id": run.run_id, "status": run.status().state.value, "from_step": step})
    else:
        click.echo(f"run {run.run_id} continues from step {step}; 'hermes rl status {run.run_id}' shows it")


@rl.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--all", "everything", is_flag=True, help="List all runs, newest first.")
@json_option
def status(run_id: str | None, everything: bool, as_json: bool) -> None:
    """Show a run: processes, newest metrics, why it ended. Without RUN: the newest one."""
    from hermes.rl.render import run_text, runs_text
    from hermes.rl.results import describe
    from hermes.rl.run import find_run
    from hermes.rl.start import current_status

    home = _config().home
    if everything:
        click.echo(runs_text(home, as_json))
        return
    run = find_run(home, run_id)
    report = describe(run, current_status(run))
    click.echo(json.dumps(report, indent=2, ensure_ascii=False) if as_json else run_text(report))


@rl.command()
@click.argument("run_id", metavar="RUN")
@click.option("--now", is_flag=True, help="Stop at once, without a last checkpoint: later progress is lost.")
@json_option
def stop(run_id: str, now: bool, as_json: bool) -> None:
    """Stop a run and all its processes; its step is finished and saved first."""
    from hermes.cli.terminal.waiting import waiting
    from hermes.rl.run import find_run
    from hermes.rl.start import stop as stop_run

    run = find_run(_config().home, run_id)
    with waiting(f"stopping run {run.run_id}"):
        ended = stop_run(run, now=now)
    if as_json:
        _print({"run_id": run.run_id, "status": ended.state.value, "reason": ended.reason})
    else:
        click.echo(f"run {run.run_id}: {ended.state.value}")
        if not ended.state.ended:
            click.echo("its trainer finishes a step and saves; --now stops at once", err=True)


@rl.command()
@click.argument("run_ids", nargs=-1, metavar="[RUN]...")
@json_option
def results(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Show final metrics, their history, and where the weights are. Without RUN: of the newest run.

    With several runs it shows the fields of their configurations that differ.
    """
    from hermes.rl.render import results_text
    from hermes.rl.results import results as read
    from hermes.rl.run import find_run
    from hermes.rl.start import current_status

    if len(run_ids) > 1:
        print_differences(run_ids, as_json)
        return
    run = find_run(_config().home, run_ids[0] if run_ids else None)
    report = read(run, current_status(run))
    click.echo(
        json.dumps(report, indent=2, ensure_ascii=False, default=str) if as_json else results_text(report)
    )
