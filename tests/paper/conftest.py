"""Records of runs on disk, with metrics as the trainer writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

WriteRun = Callable[..., Path]


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Writes the record of a run of `hermes rl` and returns its folder."""

    def write(run_id: str = "a1b2", *, seed: int = 3, steps: int = 5, shift: float = 0.0) -> Path:
        folder = tmp_path / "home" / "runs" / run_id
        folder.mkdir(parents=True)
        rows = [
            {
                "step": step,
                "time_s": 1_000.0 + step,
                "reward/mean": 0.25 + 0.1 * step + shift,
                "reward/std": 0.4,
                "data/rollouts": 64.0,
                "train/loss": 0.9 / step,
                "health/entropy": 1.5 - 0.1 * step,
                "time/step_s": 12.5,
            }
            for step in range(1, steps + 1)
        ]
        evaluations = [
            {"step": 0, "eval/success_rate": 0.125},
            {"step": steps, "eval/success_rate": 0.71875},
        ]
        lines = [json.dumps(row) for row in (*rows, *evaluations)]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        config = (
            f"run: {{run_id: {run_id}, environment: calc_ulator, model: hermes/smollm2}}\n"
            f"tinker: {{seed: {seed}, learning_rate: 0.00004, lora_rank: 32, wandb_project: private}}\n"
            "env: {group_size: 8}\n"
        )
        (folder / "config.yaml").write_text(config)
        status = {"state": "completed", "started_at_ms": 0, "ended_at_ms": 0}
        (folder / "status.json").write_text(json.dumps(status))
        (folder / "tokens.json").write_text('{"prefill": 1200, "sampled": 3400, "trained": 5600}')
        return folder

    return write
