"""Batch generation: what a trajectory costs, how many run at once, how soon the first request goes out.

    python bench/batch.py [--prompts 1000] [--hermes-agent-python /path/to/env/bin/python] [--json]

The model is an instant server in a process of its own, on the loopback interface: it asks for a tool until
the last call, then answers. So what is measured is everything but the model, with capture in the store and
in the journal, and the finished dataset. CPU is user and system time of the command and all its processes;
trajectories a second are over the whole command, its start included. The server works on the same cores.

`hermes-agent` 0.19 is measured in the same way, with the same tools (its distribution
terminal_only), where --hermes-agent-python names the Python of an environment that has it. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("calculator", "write_file")
"""What the server asks for: the first of these that was offered."""
OURS = "hermes.batch.workers.worker"


@dataclass(frozen=True)
class Result:
    what: str
    trajectories: int
    wall_s: float
    cpu_s: float
    first_request_s: float
    """From the start of the command."""
    max_in_flight: int
    peak_rss_mb: float
    """Of the largest process."""
    requests: int

    @property
    def per_s(self) -> float:
        return self.trajectories / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """For one trajectory."""
        return 1000 * self.cpu_s / self.trajectories


class Server:
    """The model: a process that answers, and tells what it saw."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.base_url = self._read()["base_url"]

    def seen(self) -> dict[str, Any]:
        """Since the last time: requests, first_s (monotonic), max_in_flight."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def serving(calls: int, latency_s: float) -> Iterator[Server]:
    command = [sys.executable, __file__, "--serve", str(calls), str(latency_s)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield Server(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def serve(calls: int, latency_s: float) -> None:
    """The server's own process; ends with its standard input."""
    sys.path.insert(0, str(ROOT))
    from tests.fakes.provider import FakeProvider, Reply, delayed, text, tool_calls

    def answer(body: dict[str, Any]) -> Reply:
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        offered = {tool["function"]["name"] for tool in body.get("tools", ())}
        name = next((name for name in TOOLS if name in offered), None)
        if turn >= calls - 1 or name is None:
            return delayed(latency_s, text("It is 42.", reasoning="Six times seven."))
        note = {"path": f"note{turn}.txt", "content": "forty-two"}
        arguments = {"expression": f"6 * 7 + {turn}"} if name == "calculator" else note
        return delayed(latency_s, tool_calls([(name, arguments)], reasoning="I need the tool."))

    with FakeProvider(answer) as provider:
        print(json.dumps({"base_url": provider.base_url}), flush=True)
        for _ in sys.stdin:
            posts = provider.posts
            first_s = posts[0].arrived_s if posts else None
            seen = {"requests": len(posts), "first_s": first_s, "max_in_flight": provider.max_in_flight}
            provider.requests.clear()
            provider.max_in_flight = 0
            print(json.dumps(seen), flush=True)


class Memory(threading.Thread):
    """The largest resident set of any process below this one whose command line has `mark` in it."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self.peak_mb = 0.0
        self._mark = mark.encode()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.2):
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal() and int(entry.name) != os.getpid():
                    self._look(entry)

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self.peak_mb

    def _look(self, entry: Path) -> None:
        try:
            if self._mark not in (entry / "cmdline").read_bytes():
                return
            for line in (entry / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_mb = max(self.peak_mb, int(line.split()[1]) / 1024)
        except OSError:
            return  # it has ended


def measure(
    what: str, command: list[str], env: dict[str, str], mark: str, prompts: int, server: Server
) -> Result:
    memory = Memory(mark)
    memory.start()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile("w+") as said:
        started_s = time.monotonic()
        done = subprocess.run(command, env=env, cwd=env["HERMES_HOME"], stdout=said, stderr=said, check=False)
        wall_s = time.monotonic() - started_s
        said.seek(0)
        if done.returncode:
            raise SystemExit(f"{what} failed:\n{said.read()[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seen = server.seen()
    rows = Path(env["HERMES_HOME"], "data/bench/trajectories.jsonl").read_bytes().count(b"\n")
    if rows != prompts:
        raise SystemExit(f"{what}: {rows} of {prompts} trajectories are in the dataset")
    return Result(
        what=what,
        trajectories=prompts,
        wall_s=wall_s,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        first_request_s=seen["first_s"] - started_s,
        max_in_flight=seen["max_in_flight"],
        peak_rss_mb=memory.stop(),
        requests=seen["requests"],
    )


@contextmanager
def home(prompts: int) -> Iterator[dict[str, str]]:
    """An environment with a home of its own, where the tasks lie."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = [json.dumps({"prompt": f"What is 6 * 7? ({number})"}) + "\n" for number in range(prompts)]
        Path(folder, "tasks.jsonl").write_text("".join(tasks))
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        yield {**kept, "HOME": folder, "HERMES_HOME": folder}


def ours(what: str, prompts: int, server: Server, *flags: str) -> Result:
    with home(prompts) as env:
        command = [
            sys.executable,
            "-m",
            "hermes",
            "batch",
            "--dataset-file",
            "tasks.jsonl",
            "--run-name",
            "bench",
        ]
        command += ["--model", "m", "--base-url", server.base_url, "--json", *flags]
        return measure(what, command, env, OURS, prompts, server)


def hermes_agent(python: str, prompts: int, server: Server) -> Result:
    with home(prompts) as env:
        command = [python, "-m", "batch_runner", "--dataset_file=tasks.jsonl", "--batch_size=10"]
        command += ["--run_name=bench", "--distribution=terminal_only", "--model=m", "--api_key=unused"]
        command += [f"--base_url={server.base_url}", "--num_workers=4"]
        return measure("hermes-agent, terminal_only", command, env, "batch_runner", prompts, server)


def run(options: argparse.Namespace) -> dict[str, Any]:
    workers = ("--num-workers", str(options.workers))
    results: list[Result] = []
    with serving(3, 0.0) as server:
        ours("warm-up", 2, server, "--toolsets", "math", *workers)
        starts = [
            ours("start", 1, server, "--toolsets", "math").first_request_s for _ in range(options.starts)
        ]
        results.append(ours("ours, math", options.prompts, server, "--toolsets", "math", *workers))
        if options.hermes_agent_python:
            same = ("--distribution", "terminal_only", *workers)
            results.append(ours("ours, terminal_only", options.prompts, server, *same))
            results.append(hermes_agent(options.hermes_agent_python, options.hermes_agent_prompts, server))
    with serving(3, 1.0) as server:
        one = ("--toolsets", "math", "--num-workers", "1", "--concurrency", "256")
        results.append(ours("ours, 1 s a call, 256 at once, 1 worker", options.waiting_prompts, server, *one))
    return {
        "machine": {
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "python": sys.version.split()[0],
        },
        "start_s": {"median": statistics.median(starts), "best": min(starts), "runs": len(starts)},
        "runs": [{**asdict(each), "per_s": each.per_s, "cpu_ms": each.cpu_ms} for each in results],
    }


def table(report: dict[str, Any]) -> str:
    heading = ("run", "trajectories", "per s", "CPU-ms each", "in flight", "peak MB", "requests")
    lines = [heading] + [
        (
            each["what"],
            str(each["trajectories"]),
            f"{each['per_s']:.1f}",
            f"{each['cpu_ms']:.1f}",
            str(each["max_in_flight"]),
            f"{each['peak_rss_mb']:.0f}",
            str(each["requests"]),
        )
        for each in report["runs"]
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heading))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    start = report["start_s"]
    shown.append(f"command to first request: {start['median']:.2f} s median, {start['best']:.2f} s best")
    return "\n".join([*shown, f"machine: {report['machine']}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--waiting-prompts", type=int, default=768, help="with 1 s of latency a call")
    parser.add_argument("--workers", type=int, default=2, help="of ours")
    parser.add_argument("--starts", type=int, default=5, help="how often the start is timed")
    parser.add_argument("--hermes-agent-python", metavar="PATH")
    parser.add_argument("--hermes-agent-prompts", type=int, default=100, help="it takes its time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("CALLS", "LATENCY_S"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(int(options.serve[0]), float(options.serve[1]))
        return
    report = run(options)
    print(json.dumps(report) if options.json else table(report))


if __name__ == "__main__":
    main()
