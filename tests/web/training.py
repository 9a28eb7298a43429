"""Folders of runs as a trainer and its supervisor leave them."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from hermes.rl.run import RlRun, RunState, RunStatus


def metrics_row(step: int, at_s: float) -> dict[str, float]:
    reward = 0.2 + 0.7 * (1 - math.exp(-step / 40)) + 0.05 * math.sin(step * 1.7)
    spike = 0.5 if step == 61 else 0.0
    return {
        "step": step,
        "time_s": round(at_s, 3),
        "reward/mean": reward,
        "reward/std": 0.2,
        "train/loss": 0.02 * math.sin(step) + spike,
        "train/learning_rate": 4e-5,
        "health/entropy": 1.2 * math.exp(-step / 300),
        "health/group_signal": 0.6,
        "kl/reference": 0.0003 * step,
        "optim/grad_norm": 0.5 + 0.1 * math.cos(step),
        "time/step_s": 6.0,
    }


def make_run(
    home: Path, run_id: str, environment: str, steps: int, state: RunState, rate: float = 4e-5
) -> Path:
    run = RlRun(home, run_id)
    run.folder.mkdir(parents=True)
    now_s = time.time()
    began_ms = int((now_s - 6 * steps) * 1000)
    event = {"at_ms": began_ms, "text": "the trainer made its first step"}
    ended = None if state is RunState.RUNNING else int(now_s * 1000)
    run.write_status(RunStatus(state, None, None, began_ms, ended, None, {}, (event,)))
    run.config_path.write_text(
        f"env:\n  total_steps: 200\n  group_size: 8\n  wandb_name: x\nopenai:\n- model_name: policy\n"
        f"tinker:\n  learning_rate: {rate}\n  base_model: hermes/smollm2\n"
        f"run:\n  run_id: {run_id}\n  environment: {environment}\n  model: hermes/smollm2\n"
        f"  created_at_ms: {began_ms}\n  service: null\n"
    )
    rows = [metrics_row(step, now_s - 6 * (steps - step)) for step in range(1, steps + 1)]
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint = [50, "tinker://m/weights/50", "tinker://m/sampler_weights/50", 0.5, False]
    state_file = {"format": 1, "kind": "rl", "settings": {}, "kept": [checkpoint], "best": checkpoint}
    (run.folder / "training.json").write_text(json.dumps(state_file))
    return run.folder


def fill_runs(home: Path) -> tuple[str, str]:
    """Two runs that can be compared."""
    make_run(home, "a1b2c3d4", "calculator", 120, RunState.COMPLETED)
    make_run(home, "e5f60718", "gsm8k", 80, RunState.STOPPED, 1e-4)
    return "a1b2c3d4", "e5f60718"
