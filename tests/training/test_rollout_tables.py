"""Tables of sampled rollouts: what is in them, and that the real packages keep them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hermes.safety.redact import Redactor
from hermes.training.monitor.rollout_table import COLUMNS, RolloutTable
from tests.training.sink_packages import needs
from tests.training.world import PROMPT, group

SECRET = "sk-0123456789abcdefghij"
SCRIPT = """
import json, sys
from pathlib import Path
from hermes.training.monitor.rollout_table import COLUMNS, ROLLOUTS
from hermes.training.monitor.sinks import JsonLines, Label, Sinks
name, folder = sys.argv[1], Path(sys.argv[2])
sinks = Sinks([JsonLines(folder)])
assert not sinks.take_tables
sinks.add(name, folder, Label("run-1", "project-1", "title-1"), {})
assert sinks.take_tables == (name != "tensorboard")
rows = json.loads(sys.argv[3])
for step in (1, 2):
    sinks.write(step, {"reward/mean": step / 8})
    sinks.write_table(step, ROLLOUTS, COLUMNS, [[step, *row[1:]] for row in rows])
sinks.close()
print(json.dumps(sinks.failures))
"""


def decode(tokens: Any) -> str:
    return " ".join(SECRET if token == 99 else f"w{token}" for token in tokens)


def table() -> RolloutTable:
    return RolloutTable(decode, Redactor({"MY_KEY": SECRET}).text, every=5)


def batch() -> list[dict[str, Any]]:
    answers = [[20 + index, 40 + index] for index in range(6)]
    logprobs = [[-1.0, -1.0] for _ in answers]
    scores = [0.1 * index for index in range(6)]
    overrides = [{"stop_reason": "completed", "success": score > 0.3, "kind": "easy"} for score in scores]
    named = {"group_overrides": {"environment": "letters"}, "overrides": overrides}
    return [
        group(answers, logprobs, scores, **named),
        group([[99, 8], [9, 10]], logprobs[:2], [1.0, -1.0]),
        group([list(range(200, 2400))] * 2, [[-1.0] * 2200] * 2, [0.5, 0.5]),
    ]


def test_a_table_has_rollouts_from_the_worst_to_the_best_without_secrets() -> None:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table().rows(batch(), 10)]
    scores = [row["score"] for row in rows]
    assert len(rows) == 8 and scores == sorted(scores) and (scores[0], scores[-1]) == (-1.0, 1.0)
    assert rows == [dict(zip(COLUMNS, row, strict=True)) for row in table().rows(batch()[::-1], 10)]
    best = rows[-1]
    assert best["prompt"] == decode(PROMPT) and best["answer"].endswith("w8")
    assert SECRET not in json.dumps(rows) and best["tokens"] == 2 and best["step"] == 10
    easy = next(row for row in rows if row["environment"] == "letters")
    assert (easy["kind"], easy["stop_reason"]) == ("easy", "completed")
    assert max(len(row["answer"]) for row in rows) < 4100, "a long answer keeps its beginning and its end"


def test_the_first_step_has_a_table_and_then_every_few() -> None:
    assert [step for step in range(1, 13) if table().is_due(step)] == [1, 5, 10]


def kept(name: str, folder: Path) -> None:
    rows = table().rows(batch(), 1)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, str(folder), json.dumps(rows)],
        env={**os.environ, "HOME": str(folder), "TRACKIO_DIR": str(folder / "trackio")},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}, done.stderr


def test_wandb_keeps_the_table_of_each_step(tmp_path: Path) -> None:
    kept("wandb-offline", tmp_path)
    tables = sorted(tmp_path.glob("wandb/offline-run-*/files/media/table/rollouts_*.table.json"))
    assert len(tables) == 2
    for step, path in enumerate(tables, start=1):
        content = json.loads(path.read_text())
        assert content["columns"] == list(COLUMNS)
        assert {row[0] for row in content["data"]} == {step} and len(content["data"]) == 8


def test_trackio_keeps_the_table_of_each_step(tmp_path: Path) -> None:
    needs("trackio")
    kept("trackio", tmp_path)
    written = b"".join(path.read_bytes() for path in (tmp_path / "trackio").rglob("*") if path.is_file())
    assert b"rollouts" in written and b"stop_reason" in written
