"""What `hermes batch status` says about a run: state, progress, cost, rewards, failures with messages."""

from __future__ import annotations

import json
from pathlib import Path

from hermes.batch.journal import JournalSegment, SampleEntry, SampleState
from hermes.batch.overview import overview, read_start, write_start
from hermes.cli.batch.status_text import status_text
from tests.batch.made import row, spec

REFUSED = "ProviderError: 503 from http://127.0.0.1:8000/v1: the model is loading"


def make_run(folder: Path, total: int, *, dead: bool) -> Path:
    """Ten samples: six done (one unscored), four failed; the process that runs them is this one, or dead."""
    run = folder / "run"
    (run / "journal").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(spec().to_json()))
    segment = JournalSegment(run / "journal" / "w.jsonl", str)
    for n in range(6):
        scored = {"reward": float(n % 2)} if n else {"reward": None, "reward_error": "KeyError: 'answer'"}
        entry = SampleEntry(f"k{n}", 0, SampleState.DONE, {**row(f"k{n}"), **scored, "cost_usd": 0.01})
        segment.append(entry).result()
    for n in range(6, 10):
        segment.append(SampleEntry(f"k{n}", 0, SampleState.FAILED, {}, REFUSED)).result()
    segment.close()
    write_start(run, total, 0)
    if dead:
        path = run / "journal" / "start.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "process": "4194305:1"}))
    return run


def test_a_stopped_run_says_how_far_it_came_and_why_samples_failed(tmp_path: Path) -> None:
    facts = overview(make_run(tmp_path, 300, dead=True))
    assert (facts["state"], facts["total"], facts["finished"], facts["percent"]) == ("stopped", 300, 6, 2.0)
    assert facts["eta_s"] is None
    assert (facts["scored"], facts["mean_reward"], facts["cost_usd"]) == (5, 0.6, 0.06)
    assert facts["failures"] == [{"cause": "ProviderError", "count": 4, "message": REFUSED}]
    text = status_text(facts)
    assert "stopped: 6 of 300 samples (2 %); the command that started it continues it" in text
    assert "4 by ProviderError" in text and "the model is loading" in text
    assert "1 by KeyError (the reward function failed)" in text
    assert "mean 0.600 over 5 scored" in text


def test_a_running_one_has_a_rate_and_a_finished_one_is_complete(tmp_path: Path) -> None:
    running = overview(make_run(tmp_path / "a", 12, dead=False))
    assert running["state"] == "running" and running["rate_per_s"] > 0 and running["eta_s"] >= 0
    assert "ETA 0:" in status_text(running)
    assert overview(make_run(tmp_path / "b", 6, dead=True))["state"] == "complete"


def test_a_run_of_an_older_version_has_no_total(tmp_path: Path) -> None:
    run = make_run(tmp_path, 300, dead=True)
    (run / "journal" / "start.json").unlink()
    assert read_start(run) is None
    assert "its total was not recorded" in status_text(overview(run))
