"""What a run has come to: its status, its metrics, and where its weights lie. Reads only.

Figures come from the run's own metrics.jsonl and evaluations, so they are there without any service.
"""

from __future__ import annotations

import json
from itertools import pairwise
from operator import or_
from pathlib import Path
from typing import Any

from hermes.core import JSONObject
from hermes.core.files import read_text
from hermes.rl.config.fields import WANDB_PROJECT
from hermes.rl.run import PARTS, RlRun, RunState, RunStatus, now_ms, read_metrics
from hermes.training.monitor.sinks import read_wandb

_HISTORY_ROWS = 10
_RECENT_STEPS = 20
_QUIET_S, _SLOWER = 600.0, 5.0
"""A run may be without a step for so long, or for so many times as long as its slowest recent step."""
_SHOWN = (
    "reward/mean",
    "train/loss",
    "train/learning_rate",
    "logprobs/diff",
    "health/group_signal",
    "health/entropy",
    "probe/gap",
)


def describe(run: RlRun, status: RunStatus) -> JSONObject:
    """Status, processes as they are at this moment, newest figures, and the reason where it failed."""
    config = run.config()
    about: JSONObject = {
        "run_id": run.run_id,
        "status": status.state.value,
        "environment": config["run"]["environment"],
        "running_time_minutes": round(_running_ms(status) / 60_000, 1),
        "processes": {name: part.describe() for name, part in status.parts.items()},
        "restarts": {name: part.starts - 1 for name, part in status.parts.items() if part.starts > 1},
        **wandb(run, config),
        "logs": logs(run, status),
        "total_steps": config["env"]["total_steps"],
    }
    if status.reason is not None:
        about["error" if status.state is RunState.FAILED else "reason"] = status.reason
    metrics = newest(run)
    if (part := _telling(status, metrics is not None)) is not None:
        about["last_log_lines"] = run.last_lines(part)
    if metrics is not None:
        about["metrics"] = metrics
    return about


def _telling(status: RunStatus, has_steps: bool) -> str | None:
    """The part whose log says why the run failed, or what a run without a step waits for."""
    if status.state is RunState.FAILED:
        culprit = (status.reason or "").partition(" ")[0]
        return culprit if culprit in status.parts else "supervisor"
    if status.state.ended or has_steps:
        return None
    return next((name for name, part in status.parts.items() if not part.ready), "trainer")


def healthy(run: RlRun, status: RunStatus) -> bool:
    """Whether every part is alive or has done its work, and steps come about as fast as they did."""
    lives = [part.process is not None and part.process.alive() for part in status.parts.values()]
    done = [part.exit_code == 0 for part in status.parts.values()]
    ends_s = [row["time_s"] for row in steps(run)[-_RECENT_STEPS:] if "time_s" in row]
    if status.state is not RunState.RUNNING or not all(map(or_, lives, done)) or not ends_s:
        return False
    longest_s = max((later - before for before, later in pairwise(ends_s)), default=0.0)
    quiet_s: float = now_ms() / 1000 - ends_s[-1]
    return quiet_s < max(_QUIET_S, _SLOWER * longest_s)


def wandb(run: RlRun, config: JSONObject) -> JSONObject:
    """What the run is called at W&B; its address there, and why W&B failed, where that is so."""
    told = read_wandb(run.folder)
    said = {f"wandb_{name}": told[name] for name in ("url", "error") if told.get(name)}
    project = config.get("tinker", {}).get("wandb_project", WANDB_PROJECT)
    return {"wandb_project": project, "wandb_run_name": config["env"]["wandb_name"], **said}


def logs(run: RlRun, status: RunStatus) -> JSONObject:
    return {part: str(run.log_path(part)) for part in status.parts or PARTS}


def newest(run: RlRun) -> JSONObject | None:
    """The last step's figures under the tools' own names; None before the first step."""
    rows = steps(run)
    if not rows:
        return None
    found: JSONObject = {"step": rows[-1]["step"]}
    if "reward/mean" in rows[-1]:
        found["reward_mean"] = rows[-1]["reward/mean"]
    if "reward/positive" in rows[-1]:
        found["percent_correct"] = 100 * rows[-1]["reward/positive"]
    if (success := _eval_success(run)) is not None:
        found["eval_percent_correct"] = 100 * success
    return found


def results(run: RlRun, status: RunStatus) -> JSONObject:
    """The end of a run: final figures, how it got there, and its weights."""
    rows = steps(run)
    config = run.config()
    found: JSONObject = {
        "run_id": run.run_id,
        "status": status.state.value,
        "environment": config["run"]["environment"],
        **wandb(run, config),
        "steps": rows[-1]["step"] if rows else 0,
    }
    if status.reason is not None:
        found["error" if status.state is RunState.FAILED else "reason"] = status.reason
    if rows:
        found["final_metrics"] = rows[-1]
        found["history"] = [_brief(row) for row in spread(rows, _HISTORY_ROWS)]
    if (success := _eval_success(run)) is not None:
        found["eval_percent_correct"] = 100 * success
    if checkpoints := kept(run):
        newest = checkpoints[-1]
        found["weights_path"] = str(newest["folder"]) if newest["folder"].is_dir() else newest["path"]
        found["checkpoints"] = [{**each, "folder": str(each["folder"])} for each in checkpoints]
    return found


def steps(run: RlRun) -> list[dict[str, Any]]:
    """One row a step, in order; where a step was written twice, the later row counts."""
    by_step = {int(row["step"]): row for row in read_metrics(run.metrics_path) if "step" in row}
    return [by_step[step] for step in sorted(by_step)]


def spread(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """At most `count` of the rows, evenly, the first and the last among them."""
    if len(rows) <= count:
        return rows
    return [rows[round(index * (len(rows) - 1) / (count - 1))] for index in range(count)]


def kept(run: RlRun) -> list[dict[str, Any]]:
    """The run's checkpoints, oldest first: step, paths to train on from and to sample, and the folder."""
    text = read_text(run.folder / "training.json")
    state = json.loads(text) if text else {}
    entries = [*state.get("kept", []), *([state["best"]] if state.get("best") else [])]
    by_step = {entry[0]: (entry[1], entry[2]) for entry in entries}
    best = state["best"][0] if state.get("best") else None
    return [
        {
            "step": step,
            "weights": by_step[step][0],
            "path": by_step[step][1],
            "folder": checkpoint_folder(run, by_step[step][1]),
            "best": step == best,
        }
        for step in sorted(by_step)
    ]


def checkpoint_folder(run: RlRun, tinker_path: str) -> Path:
    """Where the run's own engine keeps a checkpoint."""
    return run.folder / "engine" / tinker_path.removeprefix("tinker://")


def _running_ms(status: RunStatus) -> int:
    return (status.ended_at_ms or now_ms()) - status.started_at_ms


def _brief(row: dict[str, Any]) -> JSONObject:
    return {"step": row["step"], **{name: row[name] for name in _SHOWN if name in row}}


def _eval_success(run: RlRun) -> float | None:
    """Of the newest evaluation on held-out tasks."""
    text = read_text(run.folder / "evals" / "metrics.json")
    if text is None:
        return None
    try:
        found = json.loads(text)["results"]["all"]
    except (ValueError, KeyError, TypeError):
        return None
    rate: float | None = found.get("eval/success_rate", found.get("eval/percent_correct"))
    return rate
