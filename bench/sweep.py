"""Six runs as one sweep, and the same six one after another: `hermes rl sweep` against `hermes rl start`.

    python bench/sweep.py MODEL_FOLDER --output sweep.json [--device cpu|cuda] [--steps 40] [--rounds 1]

The runs differ in their learning rate. Each is an ordinary run with default fields but for its size: groups
of 8, batches of 32, answers of at most `--tokens` tokens. Measured is the wall time from the command to the
end of the last run, with everything that starts and stops; which way is first alternates from round to round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes.rl.run import RlRun, find_run, read_metrics

REWARDS = """
def vowels(ctx):
    text = ctx.answer.lower()
    return sum(letter in "aeiou" for letter in text) / len(text) if text else 0.0
"""
RATES = (3e-5, 6e-5, 1e-4, 2e-4, 4e-4, 8e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("data/sweep"))
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    fields = {
        "total_steps": options.steps,
        "batch_size": options.batch_size,
        "group_size": 8,
        "max_token_length": options.tokens,
        "max_token_trainer_length": options.tokens + 256,
        "steps_per_eval": 100_000,
    }
    ways: list[tuple[str, Callable[[Path, dict[str, Any]], list[RlRun]]]] = [
        ("sweep", sweep),
        ("one after another", one_after_another),
    ]
    rounds: list[dict[str, Any]] = []
    for number in range(options.rounds):
        measured = {}
        for name, way in ways if number % 2 == 0 else reversed(ways):
            home = prepare(options.folder.absolute() / f"{number}-{name.replace(' ', '-')}", options)
            began_s = time.monotonic()
            runs = way(home, fields)
            measured[name] = describe(runs, time.monotonic() - began_s)
            print(f"round {number}, {name}: {json.dumps(measured[name])}", flush=True)
        ratio = measured["one after another"]["wall_s"] / measured["sweep"]["wall_s"]
        rounds.append({**measured, "times_sooner": round(ratio, 2)})
        report = {"device": options.device, "rates": RATES, "fields": fields, "rounds": rounds}
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        print(f"round {number}: the sweep ended {ratio:.2f} times sooner", flush=True)


def prepare(home: Path, options: argparse.Namespace) -> Path:
    """A home with the settings, the prompts and the reward function."""
    home.mkdir(parents=True)
    settings = {"model": str(options.model.absolute()), "device": options.device}
    (home / "config.yaml").write_text(json.dumps({"rl": settings}))
    (home / "rewards.py").write_text(REWARDS)
    rows = ({"prompt": f"Say something about the number {number}."} for number in range(4096))
    (home / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def sweep(home: Path, fields: dict[str, Any]) -> list[RlRun]:
    task = {
        "env.dataset_name": home / "tasks.jsonl",
        "env.reward": f"{home / 'rewards.py'}:vowels",
        "enabled_toolsets": "[]",
    }
    values = {**task, **fields, "learning_rate": ",".join(map(str, RATES))}
    report = hermes(home, "rl", "sweep", "--env", "reward_function", *edits(values))
    return [find_run(home, row["run_id"]) for row in report["runs"]]


def one_after_another(home: Path, fields: dict[str, Any]) -> list[RlRun]:
    runs = []
    for rate in RATES:
        task = ("--prompts", str(home / "tasks.jsonl"), "--reward", f"{home / 'rewards.py'}:vowels")
        values = {**fields, "learning_rate": rate}
        command = ("rl", "start", "--no-preflight", *task, "--toolsets", "none", *edits(values))
        runs.append(find_run(home, hermes(home, *command)["run_id"]))
        while not runs[-1].status().state.ended:
            time.sleep(0.2)
    return runs


def edits(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]


def describe(runs: list[RlRun], wall_s: float) -> dict[str, Any]:
    rows = [list(read_metrics(run.metrics_path)) for run in runs]
    trained = sum(row.get("data/trained_tokens", 0.0) for steps in rows for row in steps)
    return {
        "wall_s": round(wall_s, 1),
        "states": [run.status().state.value for run in runs],
        "steps": [len(steps) for steps in rows],
        "trained_tokens": round(trained),
    }


def hermes(home: Path, *arguments: str) -> Any:
    """What the command prints as JSON."""
    command = [sys.executable, "-m", "hermes", *arguments, "--json"]
    environ = {**os.environ, "HERMES_HOME": str(home)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[:2])} failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
