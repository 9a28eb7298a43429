"""Environments, fields, runs and check results as text for a terminal, or as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.safety.output.columns import GAP, NARROWEST, aligned_lines, terminal_width, wrapped
from hermes.safety.text import printable

EVAL_SHOWN = ("eval/mean_reward", "eval/success_rate", "eval/percent_correct", "eval/samples", "eval/failed")
"""The metrics of an evaluation that are printed."""
_WAITING = re.compile(r"\(.* … \d+ s\)")
"""The sign of life of a command that waits; of those in a log only the last line tells something."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes.config.load import Config
    from hermes.core import JSONObject
    from hermes.rl.config.resolve import Resolved


def environments_text(config: Config, as_json: bool) -> str:
    from hermes.rl.config.resolve import list_environments

    listing = list_environments(config)
    if as_json:
        broken = [{"file_path": str(file.path), "error": file.reason} for file in listing.broken]
        rows = [env.to_json() for env in listing.environments]
        return json.dumps({"environments": rows, "count": len(rows), "broken": broken}, indent=2)
    table = [("NAME", "DESCRIPTION"), *((env.name, env.description) for env in listing.environments)]
    left_out = [f"left out: {file.path}: {file.reason}" for file in listing.broken]
    return "\n".join([*aligned_lines(table), *map(printable, left_out)])


def fields_text(resolved: Resolved, as_json: bool) -> str:
    rows = [(field, field.to_json(resolved.values[name])) for name, field in resolved.fields.items()]
    if as_json:
        data = {
            "environment": resolved.selection.environment,
            "configurable_fields": [row for field, row in rows if field.lock is None],
            "locked_fields": [row for field, row in rows if field.lock is not None],
        }
        return json.dumps(data, indent=2, default=str)
    table = [("FIELD", "VALUE", "MEANING")]
    for field, row in rows:
        note = f"locked for the agent: {field.lock}" if field.lock else field.description
        table.append((field.name, _shorten(row["current_value"]), note))
    return "\n".join([f"environment {resolved.selection.environment}", *aligned_lines(table)])


def run_text(description: JSONObject) -> str:
    metrics = description.get("metrics") or {}
    lines = [
        f"run {description['run_id']}  {description['environment']}  {description['status']}",
        f"step {metrics.get('step', 0)} of {description['total_steps']}, "
        f"{description['running_time_minutes']} minutes",
        *(f"{name}: {value:.4g}" for name, value in metrics.items() if name != "step"),
        *(f"{name}: {state}" for name, state in description["processes"].items()),
    ]
    for key in ("note", "error", "reason", "waiting", "environment_problem"):
        if key in description:
            lines.append(f"{key.replace('_', ' ')}: {description[key]}")
    *before, newest = description.get("last_log_lines") or [""]
    log = [line for line in (*before, newest) if line is newest or not _WAITING.fullmatch(line)]
    lines = [wrapped(printable(line)) for line in lines]
    room = max(NARROWEST, terminal_width() - len("  | "))
    lines += [f"  | {part}" for line in log if line for part in wrapped(printable(line), room).split("\n")]
    lines.append(f"logs: {printable(str(Path(next(iter(description['logs'].values()))).parent))}")
    return "\n".join(lines)


def results_text(results: JSONObject, width: int | None = None) -> str:
    """`width` of the terminal: columns that do not fit are named below the table."""
    steps = f"{results['steps']} step{'' if results['steps'] == 1 else 's'}"
    lines = [f"run {results['run_id']}  {results['environment']}  {results['status']}, {steps}"]
    lines += [wrapped(printable(f"{key}: {results[key]}")) for key in ("error", "reason") if key in results]
    history = results.get("history", [])
    if history:
        names = ["step", *(name for name in history[-1] if name != "step")]
        fitting = names[: max(2, ((width or terminal_width()) + GAP) // (NARROWEST + GAP))]
        lines += aligned_lines([fitting, *([_shorten(row.get(name)) for name in fitting] for row in history)])
        if names != fitting:
            lines.append(f"more in a wider terminal or with --json: {', '.join(names[len(fitting) :])}")
    measured = results.get("evaluations", [])
    if measured:
        names = ["step", *(name for name in EVAL_SHOWN if any(name in row for row in measured))]
        lines += aligned_lines([names, *([_shorten(row.get(name)) for name in names] for row in measured)])
    if "weights_path" in results:
        lines.append(f"weights as files: hermes rl weights {results['run_id']}")
        lines.append(f"talk to it: hermes --model run:{results['run_id']}")
    return "\n".join(map(printable, lines))


def runs_text(home: Path, as_json: bool) -> str:
    from hermes.rl.results import describe
    from hermes.rl.run import readable_runs
    from hermes.rl.start import current_status

    runs = [describe(run, current_status(run)) for run in readable_runs(home)]
    if as_json:
        return json.dumps({"runs": runs, "count": len(runs)}, indent=2)
    table = [("RUN", "ENVIRONMENT", "STATUS", "STEP", "REWARD", "MINUTES")]
    for run in runs:
        metrics = run.get("metrics") or {}
        step = f"{metrics.get('step', 0)}/{run['total_steps']}"
        figures = (step, _shorten(metrics.get("reward_mean")), str(run["running_time_minutes"]))
        table.append((run["run_id"], run["environment"], run["status"], *figures))
    return "\n".join(aligned_lines(table))


def _shorten(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def inference_text(report: JSONObject) -> str:
    table = [("MODEL", "COMPLETIONS", "CORRECT", "ACCURACY", "ERROR")]
    for model in report["models_tested"]:
        row = (model["model"], str(model["total_completions"]), str(model["correct_completions"]))
        table.append((*row, f"{model['accuracy']:.0%}", model.get("error", "")))
    working = {
        True: "the environment works",
        False: "no model could be tested",
        None: "no model was asked, so nothing is known about the environment: set a key "
        "(hermes config set OPENROUTER_API_KEY), or name a model that you have with --model",
    }[report["summary"]["environment_working"]]
    return "\n".join([*aligned_lines(table), f"{working}; files in {report['summary']['output_directory']}"])


def program_text(report: JSONObject) -> str:
    """Describes one rollout of a program, a fact a line."""
    facts = report["facts"]
    room = f" of a context of {facts['context_tokens']:,}" if facts.get("context_tokens") else ""
    echoes = ", ".join(
        f"{facts.get(f'answers_{name}', 0)} {name}" for name in ("equal", "rewritten", "edited", "foreign")
    )
    gaps = "not measured"
    if report["mean_logprob_difference"] is not None:
        mean, largest = report["mean_logprob_difference"], report["largest_logprob_difference"]
        gaps = f"{mean:.1e} on average, at most {largest:.1e}"
    lines = [
        f"{report['agent']}: exit code {facts['exit_code']}, reward {report['reward']:g}, "
        f"{report['seconds']:g} s, trajectory {report['trajectory']}",
        f"model calls: {facts['calls']} ({facts['calls_cancelled']} cancelled, {facts['calls_refused']} "
        f"refused), first prompt {facts['first_prompt_tokens']:,} tokens{room}",
        f"answers that came back: {echoes}",
        f"sequences: {facts['sequences']}; tokens sampled {facts['tokens_sampled']:,}, trained "
        f"{facts['tokens_trained']:,}, each in the context it was sampled in",
        f"log-probabilities, sampled and computed again, differ by: {gaps}",
        f"verdict: {report['verdict']}",
    ]
    return "\n".join(lines)


def _program_line(program: JSONObject) -> str:
    calls, seconds, rewards = program["calls"], program["seconds"], program["rewards"]
    room = f" of a context of {program['context_tokens']:,}" if program["context_tokens"] else ""
    verdict = "differ" if program["rewards_differ"] else "do not differ"
    return (
        f"program: {len(calls)} rollouts of {_range(calls)} model calls and {_range(seconds)} s; "
        f"first prompt {program['first_prompt_tokens']:,} tokens, "
        f"longest sequence {program['longest_tokens']:,}{room}; "
        f"rewards {', '.join(f'{reward:g}' for reward in rewards)} {verdict}"
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def preflight_text(report: JSONObject) -> str:
    names = (
        *("groups", "percent_correct", "percent_positive_reward", "mean_reward", "groups_with_signal"),
        *("distinct_answers", "truncation", "tool_errors"),
    )
    lines = [
        f"{name.replace('_', ' ')}: {_shorten(report[name])}" for name in names if report[name] is not None
    ]
    lines += [f"suggested {name}: {_shorten(value)}" for name, value in report["suggested"].items()]
    if program := report.get("program"):
        lines.append(_program_line(program))
    estimate = report["estimate"]
    about = "at least" if estimate["update_share"] is None else "about"
    pace = f"{about} {estimate['seconds_per_step']:g} s a step, {estimate['hours']:g} h"
    lines.append(pace if estimate["memory_gb"] is None else f"{pace}, {estimate['memory_gb']:g} GB")
    return wrapped("\n".join([*lines, f"verdict: {report['verdict']}"]))
