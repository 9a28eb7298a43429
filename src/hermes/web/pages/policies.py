"""Policies: which weights answer by the name `policy`, what they came from, promoting and rolling back.

Below them the weights that runs have saved, which `hermes policy` can take up.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.responses import RedirectResponse, Response

from hermes.rl.results import saved_checkpoints
from hermes.rl.run import RlRun
from hermes.rl.weights.open import check_servable
from hermes.training.policy_registry import BASE_ID, PolicyRecord, PolicyRegistry
from hermes.web.requests import WebRequest
from hermes.web.responses import PageError
from hermes.web.runs.configs import read_config
from hermes.web.runs.listing import RunRow, list_runs

_MAX_LINEAGE = 50


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """The weights of one run."""

    run: RunRow
    start_from: str
    """The weights it began with; empty: those of the base model."""
    checkpoints: list[dict[str, Any]]
    reward: float | None


def show(request: WebRequest) -> Response:
    home = request.context.home
    registry = PolicyRegistry(home)
    records = registry.policies()
    values: dict[str, Any] = {
        "current": registry.current(),
        "records": [(record, lineage(record, records)) for record in reversed(records)],
        "promotions": list(reversed(registry.promotions()))[:50],
        "weights": [entry for run in list_runs(home) if (entry := _weights(home, run)) is not None],
        "labels": {record.id: record.label for record in records},
        "base_id": BASE_ID,
    }
    return request.page("policies.html", values)


def promote(request: WebRequest) -> Response:
    """A person decides, whatever the comparison said: the reason is recorded."""
    registry = PolicyRegistry(request.context.home)
    record = registry.find(request.field("policy", max_chars=64))
    if record.id == registry.current().id:
        raise PageError(409, f"policy {record.label} is the current one already")
    check_servable(request.context.config(), record)
    registry.promote(record.id, request.field("reason", max_chars=500) or "promoted in the web app")
    return RedirectResponse("/policies", 303)


def roll_back(request: WebRequest) -> Response:
    """`from` is the policy that the page showed as current: a page that is out of date changes nothing."""
    registry = PolicyRegistry(request.context.home)
    current = registry.current()
    if request.field("from", max_chars=64) != current.id:
        raise PageError(409, "another policy has become the current one meanwhile", "Load the page again.")
    check_servable(request.context.config(), registry.before_current())
    registry.rollback()
    return RedirectResponse("/policies", 303)


def lineage(record: PolicyRecord, records: list[PolicyRecord]) -> list[str]:
    """From the base model to the policy itself."""
    by_id = {entry.id: entry for entry in records}
    chain = [record.id]
    while chain[-1] in by_id and len(chain) < _MAX_LINEAGE:
        parent = by_id[chain[-1]].parent
        if parent in chain:
            break
        chain.append(parent)
    return list(reversed(chain))


def _weights(home: Path, run: RunRow) -> TrainedWeights | None:
    try:
        checkpoints = saved_checkpoints(RlRun(home, run.run_id))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    if not checkpoints:
        return None
    config = read_config(home / "runs" / run.run_id)
    start_from = config.get("tinker.start_from") or config.get("start_from") or ""
    reward = run.metrics.get("eval/reward", run.metrics.get("reward/mean"))
    return TrainedWeights(run, "" if start_from == "null" else start_from, checkpoints, reward)


ROUTES = (
    ("GET", "/policies", show),
    ("POST", "/policies/promote", promote),
    ("POST", "/policies/rollback", roll_back),
)
