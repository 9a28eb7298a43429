"""The status, metrics and checkpoints of a run as data. Reads only.

The figures come from the run's metrics.jsonl and evaluations on disk, so they need no service.
"""

from __future__ import annotations

import re
from itertools import pairwise
from operator import or_
from typing import Any

from hermes.core import JSONObject, parse_object
from hermes.core.clock import now_ms
from hermes.core.names import policy_name
from hermes.disk.files import read_text
from hermes.errors import HermesError
from hermes.rl.machine import DiskRoom
from hermes.rl.process import read_tail
from hermes.rl.run import PROCESS_NAMES, RlRun, RunState, RunStatus, read_metrics
from hermes.rl.run_config import RunConfig
from hermes.safety.text import printable
from hermes.training.monitor.sinks import read_wandb
from hermes.training.start_weights import checkpoint_folder

_PROBLEM = re.compile(
    r"WARNING \S+: (grading has taken .*|a group failed \((?:grader|environment)\): .*)$", re.M
)
_LOG_BYTES = 1 << 16
_HISTORY_ROWS = 10
_RECENT_STEPS = 20
_QUIET_S, _SLOWER = 600.0, 5.0
"""A healthy run makes a step within this time, or within this many times its slowest recent step."""
_SHOWN = (
    "reward/mean",
    "train/loss",
    "train/learning_rate",
    "logprobs/diff",
    "health/group_signal",
    "health/entropy",
    "probe/gap",
)
_CURVES = ("env/", "reward_part/")
"""The prefixes of rewards by environment and of the parts of rewards."""


def describe(run: RlRun, status: RunStatus) -> JSONObject:
    """Status, processes as they are now, newest metrics, and the reason if it failed."""
    config = run.config()
    description: JSONObject = {
        "run_id": run.run_id,
        "status": status.state.value,
        "environment": config.run.label,
        "running_time_minutes": round(_running_ms(status) / 60_000, 1),
        "processes": {name: process.describe() for name, process in status.processes.items()},
        "restarts": {
            name: process.starts - 1 for name, process in status.processes.items() if process.starts > 1
        },
        **wandb_info(run, config),
        "logs": log_paths(run, status),
        "total_steps": config.env.total_steps,
        **({"note": config.run.note} if config.run.note else {}),
    }
    if status.reason is not None:
        description["error" if status.state is RunState.FAILED else "reason"] = status.reason
    if (waiting := waiting_for(run, status)) is not None:
        description["waiting"] = waiting
    if (problem := environment_problem(run)) is not None:
        description["environment_problem"] = problem
    metrics = newest_metrics(run)
    if (process := _process_to_show(status, metrics is not None)) is not None:
        description["last_log_lines"] = run.last_lines(process)
    if metrics is not None:
        description["metrics"] = metrics
    return description


def waiting_for(run: RlRun, status: RunStatus) -> str | None:
    """The condition that the run waits for before it goes on; None: nothing, or it has ended.

    A supervisor that cannot write its status, because the disk is full, cannot say so there.
    """
    if status.state.ended:
        return None
    full = DiskRoom.if_full(run.folder)
    return status.waiting or (full.sentence() if full else None)


def environment_problem(run: RlRun) -> str | None:
    """The newest failure of the author's code in an environment's log, with file and line; None: none."""
    names = [name for name in run.status().processes if name.startswith("env")] or ["env"]
    logs = [read_tail(run.log_path(name), _LOG_BYTES) for name in names]
    problems = [match[1] for log in logs for match in _PROBLEM.finditer(log)]
    return printable(problems[-1]) if problems else None


def _process_to_show(status: RunStatus, has_steps: bool) -> str | None:
    """The process whose log shows why the run failed, or what a run without a step waits for."""
    if status.state is RunState.FAILED:
        culprit = (status.reason or "").partition(" ")[0]
        return culprit if culprit in status.processes else "supervisor"
    if status.state.ended or has_steps:
        return None
    return next((name for name, process in status.processes.items() if not process.ready), "trainer")


def is_healthy(run: RlRun, status: RunStatus) -> bool:
    """Whether every process is alive or has done its work, and steps are about as fast as before."""
    processes = status.processes.values()
    alive = [process.process_id is not None and process.process_id.alive() for process in processes]
    done = [process.exit_code == 0 for process in processes]
    ends_s = [row["time_s"] for row in step_rows(run)[-_RECENT_STEPS:] if "time_s" in row]
    if waiting_for(run, status) is not None:
        return False
    if status.state is not RunState.RUNNING or not all(map(or_, alive, done)) or not ends_s:
        return False
    longest_s = max((later - before for before, later in pairwise(ends_s)), default=0.0)
    quiet_s: float = now_ms() / 1000 - ends_s[-1]
    return quiet_s < max(_QUIET_S, _SLOWER * longest_s)


def wandb_info(run: RlRun, config: RunConfig) -> JSONObject:
    """The project and name of the run at W&B, its page, and why W&B failed if it did."""
    recorded = read_wandb(run.folder)
    page = {f"wandb_{name}": recorded[name] for name in ("url", "error") if recorded.get(name)}
    names = {"wandb_project": config.tinker.wandb_project, "wandb_run_name": config.env.wandb_name}
    return {**names, **page}


def log_paths(run: RlRun, status: RunStatus) -> JSONObject:
    return {name: str(run.log_path(name)) for name in status.processes or PROCESS_NAMES}


def newest_metrics(run: RlRun) -> JSONObject | None:
    """The metrics of the last step under the names that the tools use; None before the first step."""
    rows = step_rows(run)
    if not rows:
        return None
    metrics: JSONObject = {"step": rows[-1]["step"]}
    if "reward/mean" in rows[-1]:
        metrics["reward_mean"] = rows[-1]["reward/mean"]
    if "success/mean" in rows[-1]:  # the strict verdict, where the environment gives one
        metrics["percent_correct"] = 100 * rows[-1]["success/mean"]
    if "reward/positive" in rows[-1]:
        metrics["percent_positive_reward"] = 100 * rows[-1]["reward/positive"]
    if (success := _eval_success(run)) is not None:
        metrics["eval_percent_correct"] = 100 * success
    return metrics


def results(run: RlRun, status: RunStatus) -> JSONObject:
    """The final metrics of a run, their history, and its checkpoints."""
    rows = step_rows(run)
    config = run.config()
    report: JSONObject = {
        "run_id": run.run_id,
        "status": status.state.value,
        "environment": config.run.label,
        **wandb_info(run, config),
        "steps": rows[-1]["step"] if rows else 0,
    }
    if status.reason is not None:
        report["error" if status.state is RunState.FAILED else "reason"] = status.reason
    if rows:
        report["final_metrics"] = rows[-1]
        report["history"] = [_shown_metrics(row) for row in evenly_spaced(rows, _HISTORY_ROWS)]
    if (success := _eval_success(run)) is not None:
        report["eval_percent_correct"] = 100 * success
    if measured := evaluations(run):
        report["evaluations"] = measured
    if checkpoints := saved_checkpoints(run):
        newest = checkpoints[-1]
        report["weights_path"] = str(newest["folder"]) if newest["folder"].is_dir() else newest["path"]
        report["policy"] = policy_name(run.run_id, newest["step"])
        report["checkpoints"] = [
            {**checkpoint, "folder": str(checkpoint["folder"])} for checkpoint in checkpoints
        ]
    return report


def step_rows(run: RlRun) -> list[dict[str, Any]]:
    """One row per step, in order; of a step that was written twice the later row counts."""
    by_step = {int(row["step"]): row for row in read_metrics(run.metrics_path) if row.get("step")}
    return [by_step[step] for step in sorted(by_step)]


def evaluations(run: RlRun) -> list[JSONObject]:
    """Every evaluation, in order of the steps whose weights were measured; step 0 is the baseline."""
    by_step: dict[int, JSONObject] = {}
    for row in read_metrics(run.metrics_path):
        metrics = {name: value for name, value in row.items() if name.startswith("eval/")}
        if metrics and "step" in row:
            step = int(metrics.pop("eval/step", row["step"]))
            by_step[step] = {"step": step, **metrics}
    return [by_step[step] for step in sorted(by_step)]


def evenly_spaced(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """At most `count` of the rows, evenly spaced, including the first and the last."""
    if len(rows) <= count:
        return rows
    return [rows[round(index * (len(rows) - 1) / (count - 1))] for index in range(count)]


def saved_checkpoints(run: RlRun) -> list[dict[str, Any]]:
    """The run's checkpoints, oldest first: step, paths to resume and to sample from, and the folder."""
    path = run.folder / "training.json"
    text = read_text(path)
    try:
        state = parse_object(text) if text else {}
    except ValueError as error:
        raise HermesError(f"{path} is damaged: {error}", "move the run's folder aside") from error
    entries = [*state.get("kept", []), *([state["best"]] if state.get("best") else [])]
    by_step = {entry[0]: (entry[1], entry[2]) for entry in entries}
    best = state["best"][0] if state.get("best") else None
    return [
        {
            "step": step,
            "weights": by_step[step][0],
            "path": by_step[step][1],
            "folder": checkpoint_folder(run.folder / "engine", by_step[step][1]),
            "best": step == best,
        }
        for step in sorted(by_step)
    ]


def _running_ms(status: RunStatus) -> int:
    return (status.ended_at_ms or now_ms()) - status.started_at_ms


def _shown_metrics(row: dict[str, Any]) -> JSONObject:
    curves = sorted(name for name in row if name.startswith(_CURVES))
    return {"step": row["step"], **{name: row[name] for name in (*_SHOWN, *curves) if name in row}}


def _eval_success(run: RlRun) -> float | None:
    """The success rate of the newest evaluation on held-out tasks."""
    text = read_text(run.folder / "evals" / "metrics.json")
    if text is None:
        return None
    try:
        metrics = parse_object(text)["results"]["all"]
    except (ValueError, KeyError, TypeError):
        return None
    rate: float | None = metrics.get("eval/success_rate", metrics.get("eval/percent_correct"))
    return rate
