"""What the files of a run say after kills."""

from __future__ import annotations

from pathlib import Path

from hermes.rl.run import RlRun, last_step
from tests.training.books import check_served, check_weights, trained_leases
from tests.training.world import start_api


def check_books(run: RlRun, steps: int, weights: Path | None = None) -> None:
    """No step trained twice or missing, no batch lost, and as many updates in the weights as steps."""
    leases = trained_leases(run.folder, steps)
    check_weights(run.folder, weights or run.folder / "engine")
    api, url = start_api(run.folder)
    try:
        check_served(url, leases)
    finally:
        api.kill()


def is_beyond(run: RlRun, made: int) -> bool:
    return run.status().state.ended or last_step(run) > made
