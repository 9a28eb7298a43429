"""Environments, fields and runs as text for a terminal, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.safety.text import printable

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.core import JSONObject
    from hermes.rl.config.resolve import Resolved


def environments(config: Config, as_json: bool) -> str:
    from hermes.rl.config.resolve import list_environments

    found = list_environments(config)
    if as_json:
        broken = [{"file_path": str(each.path), "error": each.reason} for each in found.broken]
        rows = [each.to_json() for each in found.environments]
        return json.dumps({"environments": rows, "count": len(rows), "broken": broken}, indent=2)
    table = [("NAME", "DESCRIPTION"), *((each.name, each.description) for each in found.environments)]
    left_out = [f"left out: {each.path}: {each.reason}" for each in found.broken]
    return "\n".join([*_columns(table), *map(printable, left_out)])


def fields(resolved: Resolved, as_json: bool) -> str:
    shown = [(field, field.to_json(resolved.values[name])) for name, field in resolved.fields.items()]
    if as_json:
        data = {
            "environment": resolved.selection.environment,
            "configurable_fields": [each for field, each in shown if field.lock is None],
            "locked_fields": [each for field, each in shown if field.lock is not None],
        }
        return json.dumps(data, indent=2, default=str)
    table = [("FIELD", "VALUE", "MEANING")]
    for field, each in shown:
        note = f"locked: {field.lock}" if field.lock else field.description
        table.append((field.name, _short(each["current_value"]), note))
    return "\n".join([f"environment {resolved.selection.environment}", *_columns(table)])


def run_text(told: JSONObject) -> str:
    figures = told.get("metrics") or {}
    lines = [
        f"run {told['run_id']}  {told['environment']}  {told['status']}",
        f"step {figures.get('step', 0)} of {told['total_steps']}, {told['running_time_minutes']} minutes",
        *(f"{name}: {value:.4g}" for name, value in figures.items() if name != "step"),
        *(f"{name}: {state}" for name, state in told["processes"].items()),
    ]
    for key in ("error", "reason"):
        if key in told:
            lines.append(f"{key}: {told[key]}")
    lines += [f"  | {line}" for line in told.get("last_log_lines", [])]
    lines.append(f"logs: {Path(next(iter(told['logs'].values()))).parent}")
    return "\n".join(map(printable, lines))


def results_text(found: JSONObject) -> str:
    lines = [f"run {found['run_id']}  {found['environment']}  {found['status']}, {found['steps']} steps"]
    lines += [f"{key}: {found[key]}" for key in ("error", "reason") if key in found]
    history = found.get("history", [])
    if history:
        names = ["step", *(name for name in history[-1] if name != "step")]
        rows = [[_short(row.get(name)) for name in names] for row in history]
        lines += _columns([names, *rows])
    if "weights_path" in found:
        lines.append(f"weights: {found['weights_path']}")
    return "\n".join(map(printable, lines))


def runs_text(home: Path, as_json: bool) -> str:
    from hermes.rl.results import describe
    from hermes.rl.run import all_runs
    from hermes.rl.start import look

    told = [describe(run, look(run)) for run in all_runs(home)]
    if as_json:
        return json.dumps({"runs": told, "count": len(told)}, indent=2)
    table = [("RUN", "ENVIRONMENT", "STATUS", "STEP", "REWARD", "MINUTES")]
    for each in told:
        figures = each.get("metrics") or {}
        step = f"{figures.get('step', 0)}/{each['total_steps']}"
        reward = _short(figures.get("reward_mean"))
        table.append(
            (
                each["run_id"],
                each["environment"],
                each["status"],
                step,
                reward,
                str(each["running_time_minutes"]),
            )
        )
    return "\n".join(_columns(table))


def _short(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _columns(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[index]) for row in table) for index in range(len(table[0]))]
    return [
        printable("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        for row in table
    ]


def inference_text(found: JSONObject) -> str:
    table = [("MODEL", "COMPLETIONS", "CORRECT", "ACCURACY", "ERROR")]
    for each in found["models_tested"]:
        row = (each["model"], str(each["total_completions"]), str(each["correct_completions"]))
        table.append((*row, f"{each['accuracy']:.0%}", each.get("error", "")))
    working = (
        "the environment works" if found["summary"]["environment_working"] else "no model could be tested"
    )
    return "\n".join([*_columns(table), f"{working}; files in {found['summary']['output_directory']}"])


def preflight_text(found: JSONObject) -> str:
    shown = (
        *("groups", "pass_rate", "mean_reward", "groups_with_signal", "distinct_answers"),
        *("truncation", "tool_errors"),
    )
    lines = [f"{name.replace('_', ' ')}: {_short(found[name])}" for name in shown if found[name] is not None]
    lines += [f"suggested {name}: {_short(value)}" for name, value in found["suggested"].items()]
    estimate = found["estimate"]
    about = "at least" if estimate["update_share"] is None else "about"
    pace = f"{about} {estimate['seconds_per_step']:g} s a step, {estimate['hours']:g} h"
    lines.append(pace if estimate["memory_gb"] is None else f"{pace}, {estimate['memory_gb']:g} GB")
    return "\n".join([*lines, f"verdict: {found['verdict']}"])
