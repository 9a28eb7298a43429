"""`hermes rl check | test | preflight | doctor`: whether a run will learn, and why one does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import json_option, stored_variables
from hermes.config.option import Options, option

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.rl.config.resolve import Resolved
    from hermes.training.monitor.incidents.alerts import Alert


class EnvironmentOptions(Options):
    """The environment that is selected."""

    environment: str | None = option(None, "Environment, by name or file; it stays selected.", "--env")


class UnlockOptions(Options):
    """A person lifts the lock on base models."""

    unlock: bool = option(False, "Allow a base model that rl.model and rl.models do not name.")


class PreflightOptions(EnvironmentOptions):
    groups: int = option(4, "Number of groups to sample.", "--num-steps", former=("--groups",), ge=1, le=64)
    seconds: int = option(
        60,
        "Time limit of sampling; up to five times as long while fewer than two groups are finished.",
        "--timeout",
        former=("--seconds",),
        ge=1,
    )
    models: tuple[str, ...] = option((), "Try these models instead, provider/name; repeatable.", "--model")
    group_size: int = option(16, "Completions per group, for --model.", ge=1, le=64)


def _selected(config: Config, environment: str | None) -> Resolved:
    from hermes.rl.config.resolve import current_selection, resolve, select

    if environment is not None:
        select(config, environment)
    return resolve(config, current_selection(config.home))


def check_signal(config: Config, resolved: Resolved) -> None:
    """Samples a few groups and prints the verdict; HermesError if they have no signal to learn from."""
    import signal

    from hermes.cli.terminal.waiting import waiting
    from hermes.errors import HermesError
    from hermes.rl.checks.preflight import preflight as check
    from hermes.rl.render import preflight_text

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with waiting("preflight: sampling from the policy it starts from (--no-preflight skips it)"):
        report = check(config, resolved)
    click.echo(preflight_text(report), err=True)
    if not report["groups_with_signal"]:
        raise HermesError(
            "the run would not learn: within every group all rewards are equal",
            "warm-start it on examples first (hermes train sft --name warm, then --set start_from=warm; "
            "'hermes quickstart' shows the whole way), make the task easier, or add --no-preflight",
        )


class TaskOptions(Options):
    """Tasks that make an environment, and who does them."""

    prompts: str | None = option(
        None,
        "Tasks to train on, in place of an environment; needs --reward.",
        metavar="FILE",
    )
    reward: str | None = option(
        None,
        "Scores each rollout; with --agent also a script, or 'program', which reports its own reward.",
        metavar="FILE.py:FUNCTION",
    )
    agent: str | None = option(
        None, "Program that works on the tasks in place of our own agent; needs --prompts.", metavar="COMMAND"
    )
    train_model: str | None = option(
        None,
        "Train only the program's calls that name this model; the others go to the models they name.",
        metavar="NAME",
    )


class TrainedModelOptions(Options):
    """The model that is trained."""

    model: str | None = option(None, "Base model to train.", former=("--base-model",), metavar="MODEL")


class EditOptions(Options):
    """Fields of the environment or the trainer."""

    edits: tuple[str, ...] = option(
        (), "Set a field for this run only; repeatable.", "--set", metavar="FIELD=VALUE"
    )


def may_set(field: str, unlock: bool) -> bool:
    """Locks are for the agent; but a base model outside the settings' list needs --unlock of a person too."""
    return unlock or field.rpartition(".")[2] != "base_model"


def parse_value(text: str) -> Any:
    """A list, an object, null or a boolean in YAML; anything else stays text for the field to parse."""
    from hermes.config.yaml_file import parse_scalar

    if text[:1] in ("[", "{") or text in ("null", "true", "false"):
        return parse_scalar(text, "value")
    return text


def assignments(edits: tuple[str, ...]) -> list[tuple[str, Any]]:
    from hermes.errors import UsageError

    pairs = []
    for assignment in edits:
        field, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set {assignment} has no value", "write --set FIELD=VALUE")
        pairs.append((field, parse_value(value)))
    return pairs


def edited(config: Config, resolved: Resolved, edits: tuple[str, ...], *, unlock: bool) -> Resolved:
    """The selection with these fields of `--set`; nothing is saved."""
    from hermes.rl.config.resolve import with_edit

    for field, value in assignments(edits):
        resolved = with_edit(config, resolved.selection, field, value, unlock=may_set(field, unlock))
    return resolved


@click.command()
@model_options(EditOptions, TaskOptions, TrainedModelOptions)
@json_option
@stored_variables
def check(changes: EditOptions, task: TaskOptions, trained: TrainedModelOptions, as_json: bool) -> None:
    """Run one rollout of a program and prove what would be trained.

    \b
    hermes rl check --agent "pi -p {prompt}" \\
      --prompts tasks.jsonl --reward run-tests.sh
    """
    import signal

    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.rl.checks.program import check_program, select_program
    from hermes.rl.render import program_text

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its processes end with it
    config = load()
    resolved = select_program(config, task.agent, task.prompts, task.reward, trained.model, task.train_model)
    resolved = edited(config, resolved, changes.edits, unlock=False)
    with waiting("the policy starts, then one rollout"):
        report = check_program(config, resolved)
    click.echo(json.dumps(report, indent=2, ensure_ascii=False) if as_json else program_text(report))
    if not report["holds"]:
        raise SystemExit(1)


@click.command(hidden=True)
@model_options(PreflightOptions)
@json_option
@stored_variables
def test(options: PreflightOptions, as_json: bool) -> None:
    """The same as `hermes rl preflight --model`; three models by default."""
    _test_models(options, as_json)


def _test_models(options: PreflightOptions, as_json: bool, edits: tuple[str, ...] = ()) -> None:
    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.rl.checks.inference_test import run_inference_test

    config = load()
    resolved = edited(config, _selected(config, options.environment), edits, unlock=False)
    with waiting("sampling from the models"):
        report = run_inference_test(config, resolved, options.models, options.groups, options.group_size)
    if as_json:
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        from hermes.rl.render import inference_text

        click.echo(inference_text(report))
    if not report["summary"]["environment_working"]:
        raise SystemExit(1)


@click.command()
@model_options(PreflightOptions, EditOptions, TaskOptions)
@json_option
@stored_variables
def preflight(options: PreflightOptions, changes: EditOptions, task: TaskOptions, as_json: bool) -> None:
    """Sample for a minute and predict whether a run will learn.

    With --model it tells whether other models solve the environment's tasks. With --agent it runs three
    rollouts of a program: their model calls, tokens and seconds, and whether their rewards differ.

    \b
    hermes rl preflight --env calculator
    hermes rl preflight --agent "pi -p {prompt}" \\
      --prompts tasks.jsonl --reward run-tests.sh
    """
    if options.models:
        _test_models(options, as_json, changes.edits)
        return
    import signal

    from hermes.cli.terminal.waiting import waiting
    from hermes.config.load import load
    from hermes.rl.checks.preflight import preflight as check
    from hermes.rl.config.reward_function import select_reward_function

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its processes end with it
    config = load()
    if task.agent or task.prompts or task.reward:
        resolved = select_reward_function(
            config, options.environment, task.prompts, task.reward, task.agent, task.train_model
        )
    else:
        resolved = _selected(config, options.environment)
    resolved = edited(config, resolved, changes.edits, unlock=False)
    groups, seconds = (
        getattr(options, name) if name in options.model_fields_set else None for name in ("groups", "seconds")
    )
    with waiting("starting the policy and sampling"):
        report = check(config, resolved, groups, seconds)
    if as_json:
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        from hermes.rl.render import preflight_text

        click.echo(preflight_text(report))


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option(
    "--rule", "rules", multiple=True, metavar="RULE", help="An alert rule instead of rl.alerts; repeatable."
)
@json_option
@stored_variables
def doctor(run_id: str | None, rules: tuple[str, ...], as_json: bool) -> None:
    """Diagnose why a run does not learn. Without RUN: the newest one.

    It names causes with their evidence, and says where the metrics broke alert rules.

    Rules are the setting rl.alerts; a trainer prints an alert when it begins.

    \b
    hermes config set rl.alerts '["reward/mean < 0.1 for 20"]'
    hermes rl doctor calculator-1118 --rule 'health/entropy < 0.05'
    """
    from hermes.config.load import load
    from hermes.rl.checks.doctor import diagnose
    from hermes.rl.results import environment_problem, step_rows
    from hermes.rl.run import find_run
    from hermes.rl.start import current_status
    from hermes.safety.output.columns import wrapped
    from hermes.safety.text import printable

    run = find_run(load().home, run_id)
    status = current_status(run)
    causes = diagnose(step_rows(run), status.state.value, status.reason, environment_problem(run))
    if as_json:
        click.echo(json.dumps([cause.to_json() for cause in causes], indent=2, ensure_ascii=False))
        return
    for cause in causes:
        click.echo(wrapped(printable(f"{cause.name}: {cause.evidence}\n  fix: {cause.advice}")))
    _, broken = broken_rules(run.run_id, rules)
    for alert in broken or ():
        click.echo(wrapped(f"alert: {alert.sentence()}{', now' if alert.ongoing else ''}"))
    if not causes and not broken:
        click.echo("nothing stands out in its metrics")


@click.command(hidden=True)
@click.argument("run_id")
@click.option(
    "--rule", "rules", multiple=True, metavar="RULE", help="Use this rule instead of rl.alerts; repeatable."
)
@json_option
@stored_variables
def alerts(run_id: str, rules: tuple[str, ...], as_json: bool) -> None:
    """Show where a run broke alert rules, as `hermes rl doctor` does."""
    from hermes.errors import UsageError

    rows, broken = broken_rules(run_id, rules)
    if broken is None:
        raise UsageError("no alert rule is set", "try one: --rule 'kl/reference > 0.5'; see also rl.alerts")
    if as_json:
        click.echo(json.dumps([alert.to_json() for alert in broken], indent=2))
        return
    for alert in broken:
        click.echo(f"{alert.sentence()}{', now' if alert.ongoing else ''}")
    if not broken:
        click.echo(f"no alert in {rows} steps")


def broken_rules(run_id: str, rules: tuple[str, ...]) -> tuple[int, list[Alert] | None]:
    """The number of steps, and where they broke a rule; None: no rule is set."""
    from hermes.config.load import load
    from hermes.rl.run import read_metrics
    from hermes.training.monitor.incidents.alerts import find_alerts, parse_rule
    from hermes.training.monitor.sinks import METRICS
    from hermes.web.runs.detail import find_folder

    config = load()
    parsed = [parse_rule(rule) for rule in rules or config.settings.rl.alerts]
    rows = [row for row in read_metrics(find_folder(config.home, run_id) / METRICS) if "step" in row]
    return len(rows), find_alerts(rows, parsed) if parsed else None


def print_differences(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Prints which fields of the configurations of runs differ."""
    from hermes.cli.tables import print_table
    from hermes.config.load import load
    from hermes.errors import UsageError
    from hermes.safety.text import clip, printable
    from hermes.web.runs.configs import differences, read_config
    from hermes.web.runs.detail import find_folder

    home = load().home
    folders = {folder.name: folder for folder in (find_folder(home, run_id) for run_id in run_ids)}
    if len(folders) < 2:
        raise UsageError("one run differs from nothing", "give two or more runs")
    differing, equal = differences({name: read_config(folder) for name, folder in folders.items()})
    if as_json:
        fields = {field: dict(zip(folders, values, strict=True)) for field, values in differing}
        click.echo(json.dumps({"runs": list(folders), "differing": fields, "equal": equal}, indent=2))
        return
    rows = [(field, *(clip(printable(value or "–"), 40) for value in values)) for field, values in differing]
    print_table([("FIELD", *folders), *rows])
    click.echo(f"{equal} fields are equal")
