"""Policies: the weights that runs have saved, and what each of them came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.responses import Response

from hermes.rl.results import saved_checkpoints
from hermes.rl.run import RlRun
from hermes.web.requests import WebRequest
from hermes.web.runs.detail import read_config
from hermes.web.runs.listing import RunRow, list_runs


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """The weights of one run."""

    run: RunRow
    base_model: str
    start_from: str
    """The weights it began with; empty: those of the base model."""
    checkpoints: list[dict[str, Any]]
    reward: float | None


def show(request: WebRequest) -> Response:
    home = request.context.home
    policies = [policy for run in list_runs(home) if (policy := _policy(home, run)) is not None]
    return request.page("policies.html", {"policies": policies})


def _policy(home: Path, run: RunRow) -> TrainedPolicy | None:
    try:
        checkpoints = saved_checkpoints(RlRun(home, run.run_id))
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    if not checkpoints:
        return None
    config = read_config(home / "runs" / run.run_id)
    start_from = config.get("tinker.start_from") or config.get("start_from") or ""
    reward = run.metrics.get("eval/reward", run.metrics.get("reward/mean"))
    return TrainedPolicy(run, run.model, "" if start_from == "null" else start_from, checkpoints, reward)


ROUTES = (("GET", "/policies", show),)
