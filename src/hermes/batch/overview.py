"""A summary of a run, read from its folder alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hermes.batch.journal import SampleState, read_states
from hermes.batch.plan import read_progress
from hermes.batch.spec import load_spec
from hermes.core import JSONObject


def overview(folder: Path) -> JSONObject:
    """Counts from the journal; the number of planned samples would need the dataset."""
    spec = load_spec(folder)
    progress = read_progress(read_states(folder / "journal"))
    states = Counter(entry.state for entry in progress.finished.values())
    return {
        "run": spec.name,
        "model": spec.model,
        "dataset": spec.dataset,
        "done": states[SampleState.DONE],
        "filtered": states[SampleState.FILTERED],
        "failed": len(progress.failures),
        "finalised": (folder / "statistics.json").exists(),
    }
