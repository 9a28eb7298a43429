"""Trains the bundled model inside an agent of others: warm start, reinforcement, held-out tasks.

    python bench/own_agent.py --agent "pi -p {prompt}" [--tool bash] [--seeds 0,1,2] [--steps 12] [--out FILE]

The tasks are small jobs in a shell (create a file, count the lines of a log), drawn by the seed; a third is
held out. The warm start is short: sixteen other jobs, as the agent itself recorded them while a scripted
model gave it their solutions, so that the format is the agent's own. One line of JSON a seed: success on the
held-out tasks after the warm start and after the run, the mean reward of each step, and where the time went.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hermes.envs.tasks.jobs.kinds import FileIs, TerminalJob, make_job  # noqa: E402

KINDS = ("write", "count")
TASKS, HELD_OUT_SHARE, SHOWN_TASKS = 72, 0.33, 16
REWARD = '''
def lines(text):
    return [line.rstrip() for line in text.strip().splitlines()]


def score(ctx):
    """1 if every file is as it has to be."""
    for path, text in ctx.expected.items():
        try:
            if lines(ctx.read_file(path)) != lines(text):
                return 0.0
        except OSError:
            return 0.0
    return 1.0
'''


def draw_jobs(rng: random.Random) -> list[TerminalJob]:
    """The shown ones first; no two are alike."""
    jobs: dict[str, TerminalJob] = {}
    while len(jobs) < SHOWN_TASKS + TASKS:
        job = make_job(rng)
        if job.kind in KINDS:
            jobs[job.instruction] = job
    return list(jobs.values())


def write_tasks(path: Path, jobs: list[TerminalJob]) -> None:
    rows = [
        {
            "id": f"{job.kind}-{number}",
            "prompt": job.instruction,
            "files": dict(job.files),
            "expected": {check.path: check.text for check in job.checks if isinstance(check, FileIs)},
        }
        for number, job in enumerate(jobs)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Solver:
    """A chat endpoint that gives each job's solution as a call of the agent's shell, and then says so."""

    def __init__(self, jobs: list[TerminalJob], tool: str) -> None:
        solutions = {job.instruction: job.solution for job in jobs}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.reply(answer(body, solutions, tool))

            def do_GET(self) -> None:
                self.reply({"object": "list", "data": [{"id": "gold", "object": "model"}]})

            def reply(self, content: dict[str, Any]) -> None:
                payload = json.dumps(content).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def answer(body: dict[str, Any], solutions: dict[str, str], tool: str) -> dict[str, Any]:
    text = json.dumps(body["messages"], ensure_ascii=False)
    found = next((job for job in solutions if json.dumps(job, ensure_ascii=False)[1:-1] in text), None)
    message: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if found is not None and not any(item["role"] in ("tool", "assistant") for item in body["messages"]):
        arguments = json.dumps({"command": solutions[found]})
        call = {"id": "call_0", "type": "function", "function": {"name": tool, "arguments": arguments}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion", "model": "gold", "choices": [choice], "usage": usage}


def hermes(home: Path, *words: str) -> str:
    environ = {**os.environ, "HERMES_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "hermes", *words], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"hermes {shlex.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


@contextmanager
def engine(home: Path, *options: str) -> Iterator[str]:
    """The address of an engine that serves the bundled model for the warm start and the run."""
    command = [sys.executable, "-m", "hermes", "engine", "serve", "--port", "0", *options]
    environ = {**os.environ, "HERMES_HOME": str(home)}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+:\d+", process.stdout.readline())
        if address is None:
            raise SystemExit("the engine did not start; its output is above")
        yield address[0]
    finally:
        process.terminate()
        process.wait()


def run_seed(agent: str, tool: str, seed: int, steps: int, home: Path) -> dict[str, Any]:
    with engine(home) as service:
        return _run_seed(agent, tool, seed, steps, home, service)


def _run_seed(agent: str, tool: str, seed: int, steps: int, home: Path, service: str) -> dict[str, Any]:
    rng, folder, took = random.Random(seed), home / f"seed-{seed}", {}
    folder.mkdir(parents=True)
    tasks, shown_tasks, reward = folder / "tasks.jsonl", folder / "shown.jsonl", folder / "reward.py"
    jobs = draw_jobs(rng)
    shown = jobs[:SHOWN_TASKS]
    write_tasks(tasks, jobs[SHOWN_TASKS:])
    write_tasks(shown_tasks, shown)
    reward.write_text(REWARD)
    begun_s = time.monotonic()
    solver = Solver(shown, tool)
    settings = {"max_agent_turns": 3, "max_token_length": 96}
    given = {**settings, "agent": agent, "dataset_name": str(shown_tasks), "reward": f"{reward}:score"}
    flags = [f"--env.{name}={value}" for name, value in given.items()]
    more = [f"--env.total_steps={SHOWN_TASKS}", "--env.group_size=1", "--env.use_wandb=false"]
    more += [
        "--env.tool_pool_size=4",
        "--env.ensure_scores_are_not_same=false",
        f"--env.data_path_to_save_groups={folder / 'gold.jsonl'}",
    ]
    server = [f"--openai.base_url={solver.url}", "--openai.server_type=openai", "--openai.model_name=gold"]
    hermes(home, "env", "process", "program", *flags, *more, *server)
    solver.server.shutdown()
    took["gold"], begun_s = time.monotonic() - begun_s, time.monotonic()
    warm = f"warm-{seed}"
    words = ["--name", warm, "--batch-size", "8", "--epochs", "2", "--learning-rate", "1e-3", "--rank", "16"]
    hermes(home, "train", "sft", "--source", "env", "--service", service, "--seed", str(seed), *words)
    took["warm start"], begun_s = time.monotonic() - begun_s, time.monotonic()
    edits = {
        **{f"env.{name}": value for name, value in settings.items()},
        "env.eval_share": HELD_OUT_SHARE,
        "env.group_size": 4,
        "env.batch_size": 16,
        "env.total_steps": steps,
        "env.steps_per_eval": steps,
        "env.sampling_seed": seed,
        "env.tool_pool_size": 16,
        "env.max_eval_workers": 8,
        "env.use_wandb": False,
        "tinker.seed": seed,
        "tinker.lora_rank": 16,
        "tinker.learning_rate": 2e-4,
        "tinker.start_from": warm,
    }
    sets = [word for name, value in edits.items() for word in ("--set", f"{name}={value}")]
    start = ["rl", "start", "--agent", agent, "--prompts", str(tasks), "--reward", f"{reward}:score"]
    run = json.loads(hermes(home, *start, *sets, "--service", service, "--no-preflight", "--json"))["run_id"]
    while True:
        time.sleep(5)
        status = json.loads(hermes(home, "rl", "status", run, "--json"))
        if status["status"] not in ("starting", "running", "pending"):
            break
    took["run"] = time.monotonic() - begun_s
    rows = [json.loads(line) for line in (home / "runs" / run / "metrics.jsonl").read_text().splitlines()]
    evals = [row["eval/mean_reward"] for row in rows if "eval/mean_reward" in row]
    return {
        "seed": seed,
        "agent": agent,
        "status": status["status"],
        "held_out_before_and_after": evals,
        "reward_by_step": [row["reward/mean"] for row in rows if "reward/mean" in row],
        "seconds": {name: round(value, 1) for name, value in took.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agent", required=True)
    parser.add_argument("--tool", default="bash", help="the agent's tool that runs a command")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for seed in map(int, options.seeds.split(",")):
        home = options.home / str(seed) if options.home else Path(tempfile.mkdtemp(prefix="own-agent-"))
        home.mkdir(parents=True, exist_ok=True)
        line = json.dumps(run_seed(options.agent, options.tool, seed, options.steps, home))
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(f"{line}\n")


if __name__ == "__main__":
    main()
