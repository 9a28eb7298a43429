"""Trains the bundled model on generated shell tasks in Harbor's form: success on held-out tasks as it learns.

    python bench/harbor_training.py --seeds 0,1,2 --output harbor.json [--device cpu|cuda] [--steps 40]

The tasks are the jobs of `bench/own_agent.py` (create a file, count the lines of a log), written as folders
that Harbor itself would run: task.toml, instruction.md, a Dockerfile, tests/test.sh, solution/solve.sh. A
third is held out. The warm start is two passes over sixteen other tasks, played by a scripted model; then
`hermes rl start --env harbor` trains our own agent. First, `hermes env check harbor --solutions` has to find
every task sound. The seeds run at the same time, each with a home and an engine of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from own_agent import HELD_OUT_SHARE, SHOWN_TASKS, Solver, draw_jobs, engine, hermes

from hermes.core.stats import wilson
from hermes.envs.tasks.jobs.kinds import FileIs, TerminalJob
from hermes.rl.results import evaluations
from hermes.rl.run import find_run, read_metrics

STARTING = threading.Lock()
"""Held while a run starts: runs of several homes choose their ports one after the other."""
TASK_TOML = 'version = "1.0"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n'
TEST = """#!/bin/bash
# 1 if every file has the expected lines; white space at their ends does not count.
right=1
cd /tests/expected && while read -r path; do
  diff -Z "$path" "/app/$path" >/dev/null 2>&1 || right=0
done < <(find . -type f)
echo $right >/logs/verifier/reward.txt
"""


def write_folder(folder: Path, jobs: list[TerminalJob]) -> Path:
    for number, job in enumerate(jobs):
        contents = {
            "task.toml": TASK_TOML,
            "instruction.md": f"{job.instruction}\n",
            "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY files /app\n",
            "environment/files/.keep": "",
            "tests/test.sh": TEST,
            "solution/solve.sh": f"#!/bin/bash\n{job.solution}\n",
            **{f"environment/files/{path}": text for path, text in job.files.items()},
            **{
                f"tests/expected/{check.path}": check.text.rstrip("\n") + "\n"
                for check in job.checks
                if isinstance(check, FileIs)
            },
        }
        for name, text in contents.items():
            path = folder / f"{job.kind}-{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


def run_seed(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    home: Path = options.folder / f"seed-{seed}"
    home.mkdir(parents=True)
    with engine(home, "--device", options.device, "--kv-gib", str(options.kv_gib)) as service:
        return _run_seed(seed, options, home, service)


def _run_seed(seed: int, options: argparse.Namespace, home: Path, service: str) -> dict[str, Any]:
    jobs = draw_jobs(random.Random(seed))
    shown = write_folder(home / "shown", jobs[:SHOWN_TASKS])
    tasks = write_folder(home / "tasks", jobs[SHOWN_TASKS:])
    took: dict[str, float] = {}
    clock = time.monotonic()

    def lap(name: str) -> None:
        nonlocal clock
        took[name], clock = round(time.monotonic() - clock, 1), time.monotonic()

    checked = json.loads(hermes(home, "env", "check", "harbor", str(tasks), "--solutions", "--json"))
    lap("check")
    solver = Solver(jobs[:SHOWN_TASKS], "terminal")
    settings: dict[str, Any] = {
        "max_agent_turns": 3,
        "max_token_length": 96,
        "enabled_toolsets": '["terminal"]',
    }
    played = {
        **settings,
        "dataset_path": shown,
        "eval_share": 0,
        "total_steps": SHOWN_TASKS,
        "group_size": 1,
        "tool_pool_size": 4,
        "ensure_scores_are_not_same": "false",
        "use_wandb": "false",
        "data_path_to_save_groups": home / "gold.jsonl",
    }
    flags = [f"--env.{name}={value}" for name, value in played.items()]
    server = [f"--openai.base_url={solver.url}", "--openai.server_type=openai", "--openai.model_name=gold"]
    hermes(home, "env", "process", "harbor", *flags, *server)
    solver.server.shutdown()
    lap("play the solutions")
    words = [
        "--service",
        service,
        "--batch-size",
        "8",
        "--epochs",
        "2",
        "--learning-rate",
        "1e-3",
        "--rank",
        "16",
    ]
    hermes(home, "train", "sft", "--source", "env", "--name", f"warm-{seed}", "--seed", str(seed), *words)
    lap("warm start")
    edits = {
        **{f"env.{name}": value for name, value in settings.items()},
        "env.dataset_path": tasks,
        "env.eval_share": HELD_OUT_SHARE,
        "env.group_size": options.group,
        "env.batch_size": options.group * options.groups,
        "env.total_steps": options.steps,
        "env.steps_per_eval": max(1, options.steps // 4),
        "env.sampling_seed": seed,
        "env.tool_pool_size": options.at_once,
        "env.max_eval_workers": options.at_once,
        "env.use_wandb": "false",
        "tinker.seed": seed,
        "tinker.lora_rank": 16,
        "tinker.learning_rate": options.rate,
        "tinker.start_from": f"warm-{seed}",
    }
    sets = [word for name, value in edits.items() for word in ("--set", f"{name}={value}")]
    command = ("rl", "start", "--env", "harbor", "--service", service, "--no-preflight", "--json", *sets)
    with STARTING:
        run = find_run(home, json.loads(hermes(home, *command))["run_id"])
    while not run.status().state.ended:
        time.sleep(1)
    lap("run")
    held_out = []
    for row in evaluations(run):
        tried = round(row["eval/samples"])
        share = wilson(round(row["eval/success_rate"] * tried), tried)
        held_out.append({"step": row["step"], **asdict(share)})
    rows = list(read_metrics(run.metrics_path))
    return {
        "seed": seed,
        "state": run.status().state.value,
        "tasks": len(jobs) - SHOWN_TASKS,
        "sound_tasks": checked["sound"],
        "held_out": held_out,
        "reward_by_step": [round(row["reward/mean"], 4) for row in rows if "reward/mean" in row],
        "seconds": took,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--groups", type=int, default=8, help="tasks a step")
    parser.add_argument("--group", type=int, default=8, help="rollouts of a task")
    parser.add_argument("--at-once", type=int, default=32, help="rollouts at one time")
    parser.add_argument("--kv-gib", type=float, default=4.0, help="memory for keys and values of an engine")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--folder", type=Path, default=Path("data/harbor-training"))
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    results: list[dict[str, Any]] = []

    def run(seed: int) -> None:
        results.append(run_seed(seed, options))
        options.output.write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(results[-1]), flush=True)

    seeds = [int(seed) for seed in options.seeds.split(",")]
    with ThreadPoolExecutor(len(seeds)) as pool:
        list(pool.map(run, seeds))


if __name__ == "__main__":
    main()
