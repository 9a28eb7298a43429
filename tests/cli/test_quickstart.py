"""The quickstart, whole, on the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.process import hermes


@pytest.mark.timeout(300)
def test_the_bundled_model_answers_with_its_tool_and_the_runs_are_stored_scored_and_exported(
    bundled_home: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(bundled_home / "models")
    target = tmp_path / "out.jsonl"
    done = hermes(home, "quickstart", "--tasks", "2", "--output", str(target), timeout_s=280)
    assert done.returncode == 0, done.stderr
    assert "of 2 right" in done.stdout
    listed = json.loads(hermes(home, "trajectories", "list", "--json").stdout)
    assert len(listed) == 2
    assert all(row["reward"] is not None and row["model"] == "hermes/smollm2" for row in listed)
    assert sum(row["tool_calls"] - row["tool_errors"] for row in listed) >= 2  # it really used the tool
    record = json.loads(hermes(home, "trajectories", "show", "last", "--json").stdout)
    sampled = [step["call"]["tokens"] for step in record["steps"] if step["kind"] == "model"]
    assert all(trace and len(trace["sampled_ids"]) == len(trace["logprobs"]) > 0 for trace in sampled)
    rows = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert rows
    assert all("What is 12 * 7?" not in json.dumps(row) for row in rows)  # examples are not data
