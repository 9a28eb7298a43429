"""Where the time of a training step goes: a run of one-turn rollouts, and the processor time of its parts.

    python bench/step_profile.py MODEL_FOLDER --output step.json [--env-replicas auto] [--spy DIR]

The run is an ordinary `hermes rl start` with prompts and a reward function. Counted are the steps after the
first `--warm-up` ones: wall seconds from step to step, and processor seconds of each process of the run.
`--spy DIR` also writes a py-spy profile (collapsed stacks) of each process, taken while these steps are made.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from hermes.rl.run import RlRun, find_run, read_metrics

REWARDS = """
def vowels(ctx):
    text = ctx.answer.lower()
    return sum(letter in "aeiou" for letter in text) / len(text) if text else 0.0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--env-replicas", default="auto")
    parser.add_argument("--spy", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("data/step_profile"))
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    report = measure(options)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    home = options.folder.absolute()
    home.mkdir(parents=True, exist_ok=True)
    settings = {"model": str(options.model.absolute()), "device": options.device}
    (home / "config.yaml").write_text(json.dumps({"rl": settings}))
    (home / "rewards.py").write_text(REWARDS)
    rows = ({"prompt": f"Say something about the number {number}."} for number in range(4096))
    (home / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {
        "total_steps": options.steps,
        "batch_size": options.batch_size,
        "group_size": options.group_size,
        "max_token_length": options.tokens,
        "max_token_trainer_length": options.tokens + 256,
        "env_replicas": options.env_replicas,
        "steps_per_eval": 100_000,
    }
    edits = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
    task = ("--prompts", str(home / "tasks.jsonl"), "--reward", f"{home / 'rewards.py'}:vowels")
    started = hermes(home, "rl", "start", "--no-preflight", *task, "--toolsets", "none", *edits)
    run = find_run(home, started["run_id"])
    wait_for_steps(run, options.warm_up)
    before, spies = processor_seconds(run), start_spies(run, options.spy)
    engine_before = engine_counters(run)
    first = len(list(read_metrics(run.metrics_path)))
    wait_for_steps(run, options.steps - 2)
    after, engine_after = processor_seconds(run), engine_counters(run)
    rows_made = list(read_metrics(run.metrics_path))
    for spy in spies:
        spy.wait()
    while not run.status().state.ended:
        time.sleep(0.5)
    counted = rows_made[first:]
    walls = [later["time_s"] - row["time_s"] for row, later in itertools.pairwise(counted)]
    return {
        "state": run.status().state.value,
        "fields": fields,
        "env_processes": sum(name.startswith("env") for name in before),
        "steps": len(counted),
        "step_s": {"median": round(statistics.median(walls), 3), "max": round(max(walls), 3)},
        "trainer_step_s": mean(counted, "time/step_s"),
        "trainer_wait_s": mean(counted, "time/wait_s"),
        "engine_a_step": {
            name: round((engine_after[name] - engine_before[name]) / len(counted), 4)
            for name in engine_after
            if name.endswith(("_total", "_seconds"))
        },
        "staleness": mean(counted, "health/staleness"),
        "gap": mean(counted, "proof/gap"),
        "tokens": mean(counted, "data/trained_tokens"),
        "processor_s_a_step": {
            name: round((after[name] - before[name]) / len(counted), 3) for name in before if name in after
        },
    }


def wait_for_steps(run: RlRun, count: int) -> None:
    while len(list(read_metrics(run.metrics_path))) < count:
        if (status := run.status()).state.ended:
            raise SystemExit(f"the run ended before step {count}: {status.state.value} {status.reason}")
        time.sleep(0.2)


def processor_seconds(run: RlRun) -> dict[str, float]:
    """Name of a process of the run → processor seconds it has used."""
    seconds = {}
    for name, pid in pids(run).items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        seconds[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def pids(run: RlRun) -> dict[str, int]:
    """Name → number of each process of the run, from what the supervisor recorded."""
    processes = run.status().processes
    return {name: process.process_id.pid for name, process in processes.items() if process.process_id}


def engine_counters(run: RlRun) -> dict[str, float]:
    """The engine's own counters, from its /metrics."""
    url = f"http://127.0.0.1:{run.config().run.ports['engine']}/metrics"
    with urllib.request.urlopen(url) as response:
        lines = [line for line in response.read().decode().splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def start_spies(run: RlRun, folder: Path | None) -> list[subprocess.Popen[bytes]]:
    if folder is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return [
        subprocess.Popen(
            [
                *(
                    "py-spy",
                    "record",
                    "--pid",
                    str(pid),
                    "--duration",
                    "8",
                    "--format",
                    "raw",
                    "--rate",
                    "200",
                ),
                *("--threads", "--gil", "--output", str(folder / f"{name}.txt")),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name, pid in pids(run).items()
        if name in ("api", "engine", "trainer", "env", "env-1")
    ]


def mean(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return round(sum(values) / len(values), 6) if values else None


def hermes(home: Path, *arguments: str) -> Any:
    """What the command prints as JSON."""
    command = [sys.executable, "-m", "hermes", *arguments, "--json"]
    environ = {**os.environ, "HERMES_HOME": str(home)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[:2])} failed: {done.stderr}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
