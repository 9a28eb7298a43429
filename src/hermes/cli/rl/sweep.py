"""`hermes rl sweep`: runs that differ in some fields, all at once on one engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from hermes.cli.model_options import model_options
from hermes.cli.options import json_option
from hermes.cli.rl.checks import EnvironmentOptions, TrainedModelOptions, UnlockOptions, may_set
from hermes.config.option import option

if TYPE_CHECKING:
    from hermes.core import JSONObject


class SweepOptions(UnlockOptions, EnvironmentOptions):
    edits: tuple[str, ...] = option(
        (),
        "Values of a field: a run for each combination. One value holds for all runs; repeatable.",
        "--set",
        metavar="FIELD=A,B,…",
    )
    seeds: int = option(1, "Runs of each combination, as --set seed=0,1,….", hidden=True, ge=1)
    find_lr: bool = option(
        False,
        "Find the learning rate: short runs with rates around the default, from a tenth to ten times.",
    )
    rates: int = option(6, "Number of learning rates that --find-lr tries.", hidden=True, ge=2, le=32)
    steps: int | None = option(
        None,
        "Steps of each run; default: total_steps, with --find-lr 20.",
        "--num-steps",
        former=("--steps",),
        ge=1,
    )


@click.command()
@model_options(SweepOptions, TrainedModelOptions)
@json_option
def sweep(options: SweepOptions, trained: TrainedModelOptions, as_json: bool) -> None:
    """Train many adapters on one engine at once, and compare them.

    It runs in this terminal until all runs have ended; Ctrl-C stops them.

    \b
    hermes rl sweep --env calculator --set learning_rate=1e-4,3e-4 --seeds 2
    hermes rl sweep --env calculator --find-lr
    """
    from hermes.cli.terminal.progress import ProgressLines
    from hermes.config.environment import export_stored
    from hermes.config.load import load
    from hermes.errors import UsageError
    from hermes.rl.config.base_model import BASE_MODEL
    from hermes.rl.config.resolve import Resolved, current_selection, resolve, select, with_edit
    from hermes.rl.sweep import RATE_FIELD, grid, rates_around, run_sweep

    export_stored()
    config = load()
    if options.environment is not None:
        select(config, options.environment)
    base = resolve(config, current_selection(config.home))
    if trained.model is not None:
        base = with_edit(config, base.selection, BASE_MODEL, trained.model, unlock=True)
    values = dict(_values(edit) for edit in options.edits)
    if options.find_lr:
        if any(name.rpartition(".")[2] == "learning_rate" for name in values):
            raise UsageError("--find-lr chooses the learning rates itself", "leave out --set learning_rate")
        values[RATE_FIELD] = rates_around(float(base.values[RATE_FIELD]), options.rates)
    if options.find_lr or options.steps is not None:
        values["env.total_steps"] = [options.steps or 20]

    def resolve_point(point: Any) -> Resolved:
        resolved = base
        for field, value in point.items():
            unlock = may_set(field, options.unlock)
            resolved = with_edit(config, resolved.selection, field, value, unlock=unlock)
        return resolved

    with ProgressLines(to_stderr=as_json) as progress:
        report = run_sweep(config, grid(values, options.seeds), resolve_point, progress)
    click.echo(json.dumps(report, indent=2) if as_json else _text(report, options.find_lr))
    if report["best"] is None:
        raise UsageError("no run of the sweep completed", "hermes rl status RUN says why one failed")


def _values(edit: str) -> tuple[str, list[Any]]:
    """A field and its values; a list or an object in YAML is one value."""
    from hermes.config.yaml_file import parse_scalar
    from hermes.errors import UsageError

    field, equals, text = edit.partition("=")
    if not equals or not text:
        raise UsageError(f"--set {edit} has no value", "write --set FIELD=A,B")
    if text[0] in "[{":
        return field, [parse_scalar(text, "value")]
    return field, [
        parse_scalar(word, "value") if word in ("null", "true", "false") else word for word in text.split(",")
    ]


def _text(report: JSONObject, find_lr: bool) -> str:
    from hermes.rl.sweep import differing, edits_text

    names = differing([row["edits"] for row in report["runs"]])

    def fields(row: JSONObject) -> str:
        return edits_text({name: value for name, value in row["edits"].items() if name in names})

    lines = ["", f"{'RUN':10}{'SCORE':>8}{'GAIN':>8}{'STEPS':>7}  FIELDS"]
    for row in sorted(report["runs"], key=lambda row: -(row["score"] if row["score"] is not None else -1e9)):
        score, gain = ("" if row[name] is None else f"{row[name]:.3f}" for name in ("score", "gain"))
        notes = f"  ({row['status']})" if row["status"] != "completed" else ""
        causes = f"  doctor: {', '.join(row['causes'])}" if row["causes"] else ""
        figures = f"{score:>8}{gain:>8}{row['steps']:>7}"
        lines.append(f"{row['run_id']:10}{figures}  {fields(row)}{notes}{causes}")
    best = report["best"]
    if best is not None:
        lines.append(f"best: run {best['run_id']}, {fields(best)}")
        if find_lr:
            rate = next(value for name, value in best["edits"].items() if name.endswith("learning_rate"))
            lines.append(f"to use it: hermes rl config learning_rate {rate}")
    return "\n".join(lines)
