"""The books of a run, whatever happened to it: what was served, what was trained, what the weights hold."""

from __future__ import annotations

import json
import urllib.error
from pathlib import Path

from safetensors.numpy import load_file

from hermes.training.start_weights import checkpoint_folder
from tests.training.world import ask, metrics


def trained_leases(folder: Path, steps: int) -> list[int]:
    """The batch of each step, in order. Every step is there once, and so is every batch."""
    rows = metrics(folder)
    assert [row["step"] for row in rows] == list(range(1, steps + 1)), "each step once"
    leases = [int(row["data/lease_id"]) for row in rows]
    assert len(set(leases)) == len(leases), f"a batch was trained twice: {leases}"
    assert leases == sorted(leases), f"batches were trained out of order: {leases}"
    return leases


def check_served(api_url: str, leases: list[int]) -> None:
    """Whatever the API ever served is trained and settled, or can still be had."""
    for lease_id in range(min(leases), max(leases) + 1):
        out = _is_out(api_url, lease_id)
        assert out != (lease_id in leases), f"batch {lease_id} is {'owed' if out else 'lost'}: {leases}"


def check_weights(folder: Path, engine_state: Path) -> None:
    """The last checkpoint's optimizer has made as many updates as the metrics tell of."""
    rows = metrics(folder)
    updates = sum("optim/grad_norm" in row for row in rows)
    state = json.loads((folder / "training.json").read_text())
    step, weights = state["kept"][-1][:2]
    assert step == rows[-1]["step"] and state["taken"] == []
    saved = load_file(checkpoint_folder(engine_state, weights) / "optimizer.safetensors")
    assert int(saved["steps"][0]) == updates
    told = [row["optim/optimizer_step"] for row in rows if "optim/grad_norm" in row]
    assert told == list(range(1, updates + 1))


def _is_out(api_url: str, lease_id: int) -> bool:
    """Whether the API would still give this batch."""
    try:
        ask(api_url, "GET", f"/batch?lease_id={lease_id}&lease_s=60")
    except urllib.error.HTTPError as error:
        assert error.code == 404
        return False
    return True
