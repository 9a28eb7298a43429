"""Folders of runs as a trainer and its supervisor leave them."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path

from hermes.core import JSONObject
from hermes.rl.run import CRASH_EVENT, RlRun, RunState, RunStatus
from hermes.training.monitor.incidents.starts import CRASH, TrainerStart


def metrics_row(step: int, at_s: float) -> dict[str, float]:
    reward = 0.2 + 0.7 * (1 - math.exp(-step / 40)) + 0.05 * math.sin(step * 1.7)
    spike = 0.5 if step == 61 else 0.0
    return {
        "step": step,
        "time_s": round(at_s, 3),
        "reward/mean": reward,
        "reward/std": 0.2,
        "reward/p10": reward - 0.15,
        "reward/p50": reward,
        "reward/p90": min(1.0, reward + 0.2),
        "stop/completed": 0.9,
        "stop/max_turns": 0.1,
        "data/trained_tokens": 3000.0,
        "optim/peak_bytes": 2.5e9,
        "train/loss": 0.02 * math.sin(step) + spike,
        "train/learning_rate": 4e-5,
        "health/entropy": 1.2 * math.exp(-step / 300),
        "health/group_signal": 0.6,
        "kl/reference": 0.0003 * step,
        "optim/grad_norm": 0.5 + 0.1 * math.cos(step),
        "time/step_s": 4.0,
        "time/wait_s": 2.0,
    }


def make_run(
    home: Path, run_id: str, environment: str, steps: int, state: RunState, rate: float = 4e-5
) -> Path:
    run = RlRun(home, run_id)
    run.folder.mkdir(parents=True)
    now_s = time.time()
    began_ms = int((now_s - 6 * steps) * 1000)
    event: JSONObject = {"at_ms": began_ms, "text": "the trainer made its first step"}
    ended = None if state is RunState.RUNNING else int(now_s * 1000)
    run.write_status(RunStatus(state, None, None, began_ms, ended, None, {}, (event,)))
    run.config_path.write_text(
        f"env:\n  total_steps: 200\n  group_size: 8\n  wandb_name: x\nopenai:\n- model_name: policy\n"
        f"tinker:\n  learning_rate: {rate}\n  base_model: hermes/smollm2\n"
        f"run:\n  run_id: '{run_id}'\n  environment: {environment}\n  model: hermes/smollm2\n"
        f"  created_at_ms: {began_ms}\n  service: null\n  note: first look\n"
        f"  price: {{prefill: 0.1, sample: 0.3, train: 0.4}}\n"
    )
    rows = [metrics_row(step, now_s - 6 * (steps - step)) for step in range(1, steps + 1)]
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    checkpoint = [50, "tinker://m/weights/50", "tinker://m/sampler_weights/50", 0.5, False]
    state_file = {"format": 1, "kind": "rl", "settings": {}, "kept": [checkpoint], "best": checkpoint}
    (run.folder / "training.json").write_text(json.dumps(state_file))
    return run.folder


def add_incidents(folder: Path) -> None:
    """The trainer was killed after step 50, the engine in step 71, and the run was stopped at 100."""
    run = RlRun(folder.parents[1], folder.name)
    status = run.status()
    began_ms = status.started_at_ms
    killed: JSONObject = {
        "at_ms": began_ms + 6000 * 70 + 3000,
        "text": "engine killed (signal 9); it is started again",
        "kind": CRASH_EVENT,
    }
    run.write_status(replace(status, events=(*status.events, killed)))
    starts = (
        TrainerStart(began_ms, 0, None),
        TrainerStart(began_ms + 6000 * 50, 50, CRASH),
        TrainerStart(began_ms + 6000 * 100, 100, "stopped"),
    )
    (folder / "starts.jsonl").write_text("".join(json.dumps(asdict(start)) + "\n" for start in starts))
    card = {"hermes": "1", "python": "3", "system": "x", "packages": {}, "commit": "0123456789ab-dirty"}
    (folder / "machines.jsonl").write_text(json.dumps(card) + "\n")
    (folder / "tokens.json").write_text('{"prefill": 2000000, "sampled": 1000000, "trained": 500000}')


def fill_runs(home: Path) -> tuple[str, str]:
    """Two runs that can be compared."""
    add_incidents(make_run(home, "a1b2c3d4", "calculator", 120, RunState.COMPLETED))
    make_run(home, "e5f60718", "gsm8k", 80, RunState.STOPPED, 1e-4)
    return "a1b2c3d4", "e5f60718"
